"""A word-level tokenizer for Countdown: words are separated by spaces and a number with its sign is one token."""

from task import LARGEST_NUMBER, NUMBERS_PER_INSTANCE
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ["<pad>", "<eos>", "<unk>"]
WORDS = ["use", "to", "make", ":", "=", ",", ";", "!", "stuck"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer over the task's words and every number a search can reach; decoding joins words with a space."""
    total = NUMBERS_PER_INSTANCE * LARGEST_NUMBER
    added = [f"+{number}" for number in range(1, LARGEST_NUMBER + 1)]
    values = [str(number) for number in range(-total, 2 * total + 1)]
    words = SPECIAL_TOKENS + WORDS + added + values
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
