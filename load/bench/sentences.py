"""Makes texts of mixed length: lognormal, about 40 tokens in the mean, up to 256; the same in every process."""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how many texts there are, and how long they are."""

    # Texts: eight lists of 64, and sixteen batches of 32.
    count: int = 512
    seed: int = 0
    # Mean number of tokens of a text with its two special ones, chosen: one or two sentences.
    mean_tokens: int = 40
    # Standard deviation of the logarithm of that number, chosen: one text in a hundred has five times the median.
    sigma: float = 0.7
    # Most words of a text: with the special tokens fewer than the 256 tokens that the model takes.
    longest: int = 250


TUNING = Tuning()
# A lognormal distribution has the mean exp(mu + sigma^2 / 2).
MU = math.log(TUNING.mean_tokens) - TUNING.sigma**2 / 2

# MiniLM's and Marian's tokenizers have these common words whole, so that a word is a token.
WORDS = (
    "the a of to and in that it is was for on with as at by from this have not are but had they you his her she he we "
    "will one all would there their what so up out if about who get which go when make can like time no just him know "
    "take people into year your good some could them see other than then now look only come its over think also back "
    "after use two how our work first well way even new want because any these give day most us city government market "
    "water school house country week company system program question night point home room mother area money story fact"
)


def texts() -> list[str]:
    """Make texts of words in no sensible order; an encoder takes as long for them as for others."""
    generator = random.Random(TUNING.seed)
    lengths = (
        min(TUNING.longest, max(1, round(generator.lognormvariate(MU, TUNING.sigma)) - 2)) for _ in range(TUNING.count)
    )
    words = WORDS.split()
    return [" ".join(generator.choices(words, k=length)) for length in lengths]
