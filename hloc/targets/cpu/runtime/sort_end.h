/* sort_end.h: undefines the macros of one sort, at the end of sort.h, sort_network.h and sort_select.h. */
#undef N
#undef ELEMENT
#undef HLOC_SORT
#undef HLOC_SORT_KEPT
#undef HLOC_SORT_KEY_BITS
#undef HLOC_SORT_LENGTH
#undef HLOC_SORT_BY_PIECES
#undef HLOC_SORT_COUNTS
#undef HLOC_SORT_MERGES
#undef HLOC_SORT_RADIX
