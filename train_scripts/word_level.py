"""A word-level tokenizer for the small tasks: words are separated by spaces."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PLAIN_CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"  # a prompt with the template is itself
SPECIAL_TOKENS = ["<pad>", "<eos>", "<unk>"]


def word_level_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Tokenizer over SPECIAL_TOKENS and `words`; decoding joins words with a space."""
    vocabulary = {word: index for index, word in enumerate(SPECIAL_TOKENS + words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=PLAIN_CHAT,
    )
