"""The decoder of gpt2_prefill reads 64 tokens, then a while loop generates 32 more, the likeliest each time.

In: tokens s32[1,64], weights.  Out: the 32 generated tokens s32[1,32], and by how much the likeliest token's logit
exceeds the second one's, f32[1,32].
"""

from common import Model
from decoder import GPT2, GPT2_SEED
from generation import generation_model


def build() -> Model:
    return generation_model(GPT2, 64, 32, seed=GPT2_SEED, weights_of="gpt2_prefill", size="large")
