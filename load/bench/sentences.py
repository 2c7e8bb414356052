"""Texts of mixed length: lognormal, about 40 tokens in the mean, up to 256; the same in every process."""

import math
import random

COUNT = 512
SEED = 0
# Tokens of a text with its two special ones: mean exp(MU + SIGMA^2 / 2) = 40.
SIGMA = 0.7
MU = math.log(40) - SIGMA**2 / 2
LONGEST = 250

# Common words that MiniLM's and Marian's tokenizers have whole: a word is a token.
WORDS = (
    "the a of to and in that it is was for on with as at by from this have not are but had they you his her she he we "
    "will one all would there their what so up out if about who get which go when make can like time no just him know "
    "take people into year your good some could them see other than then now look only come its over think also back "
    "after use two how our work first well way even new want because any these give day most us city government market "
    "water school house country week company system program question night point home room mother area money story fact"
)


def texts() -> list[str]:
    """COUNT texts of words in no sensible order; an encoder takes as long for them."""
    generator = random.Random(SEED)
    lengths = (min(LONGEST, max(1, round(generator.lognormvariate(MU, SIGMA)) - 2)) for _ in range(COUNT))
    words = WORDS.split()
    return [" ".join(generator.choices(words, k=length)) for length in lengths]
