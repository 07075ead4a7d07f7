/* attention_pairs_names.h: other names for the definitions of attention*.c for pairs: a program may contain both */
#define hloc_attention hloc_attention_pairs
#define hloc_attend_start hloc_attend_start_pairs
#define hloc_attend_finish hloc_attend_finish_pairs
#define hloc_attend_score hloc_attend_score_pairs
#define hloc_attention_along hloc_attention_along_pairs
#define hloc_attention_across hloc_attention_across_pairs
#define hloc_attention_along_one hloc_attention_along_one_pairs
#define hloc_attention_across_one hloc_attention_across_one_pairs
