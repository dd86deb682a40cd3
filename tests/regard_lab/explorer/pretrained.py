"""Tiny random models of transformers and tokenizers for them, whose words are those of one sentence."""

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers_versions import needs_t5

SENTENCE = "The animal didn't cross the street, because it was too tired."
MASKED = "The animal didn't cross the [MASK], because [MASK] was too tired."
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def byte_level():
    """Pieces of bytes, as Llama 3 has, after "<s>" where the text begins."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    signs = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=signs, show_progress=False
    )
    inner.train_from_iterator([SENTENCE], trainer)
    return _wrapped(inner, "<s> $A", bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def word_pieces():
    """Pieces of words between "[CLS]" and "[SEP]", as BERT has."""
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    signs = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=signs, show_progress=False)
    inner.train_from_iterator([SENTENCE], trainer)
    names = {f"{sign[1:-1].lower()}_token": sign for sign in signs}
    return _wrapped(inner, "[CLS] $A [SEP]", **names)


def characters():
    """Characters after a mark for each space, as sentence pieces have where no longer piece fits."""
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    signs = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=50, special_tokens=signs, show_progress=False)
    inner.train_from_iterator([SENTENCE], trainer)
    return _wrapped(inner, "$A </s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def sequences():
    """Pieces of bytes before "</s>", as T5 and BART have."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = _template(tokenizer.backend_tokenizer, "$A </s>")
    return tokenizer


def _wrapped(inner, template, **signs):
    inner.post_processor = _template(inner, template)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_input_names=["input_ids", "attention_mask"], **signs
    )


def _template(inner, template):
    signs = [(sign, inner.token_to_id(sign)) for sign in template.split() if sign != "$A"]
    return processors.TemplateProcessing(single=template, special_tokens=signs)


BYTES = byte_level()
PIECES = word_pieces()
PAIRS = sequences()


def drawn(model):
    """The model in eval mode, its weights drawn so that every word moves every other one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def mistral():
    config = transformers.MistralConfig(
        vocab_size=len(BYTES),
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=12,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **SIZES,
    )
    return drawn(transformers.MistralForCausalLM(config))


def bert(kind="BertModel"):
    config = transformers.BertConfig(
        vocab_size=len(PIECES), max_position_embeddings=64, pad_token_id=0, **SIZES
    )
    return drawn(getattr(transformers, kind)(config))


def albert():
    return drawn(
        transformers.AlbertModel(
            transformers.AlbertConfig(vocab_size=len(BYTES), embedding_size=8, **SIZES)
        )
    )


def t5(decoder_layers=2, layers=2):
    needs_t5()
    config = transformers.T5Config(
        vocab_size=len(PAIRS),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=layers,
        num_heads=4,
        decoder_start_token_id=0,
        num_decoder_layers=decoder_layers,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = drawn(transformers.T5ForConditionalGeneration(config))
    model.generation_config.max_new_tokens = None
    return model
