# SPDX-License-Identifier: Apache-2.0
"""Where the packages are that scripts/setup installs for tests, and small inputs."""

import importlib.util
import sys
from pathlib import Path

import ranks

EXIT_SKIPPED = 77
ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "clients"
VOCABULARY = 97


def need(*names):
    """Ends this process as skipped where a package cannot be had."""
    sys.path.append(str(FOLDER))
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed (scripts/setup)")
        sys.exit(EXIT_SKIPPED)


def gpt2(**more):
    """A GPT-2 of random values, the same on every rank."""
    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
        eos_token_id=None, pad_token_id=0, **more)
    return transformers.GPT2LMHeadModel(config)


def llama(**more):
    """The same of Llama, with fewer heads for keys than for queries."""
    import torch
    import transformers
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32, bos_token_id=0, eos_token_id=None, pad_token_id=0,
        **more)
    return transformers.LlamaForCausalLM(config)


def batch_of(step, rank):
    """Two batches of tokens for each rank, over and over, so that a loss falls."""
    import torch
    generator = torch.Generator().manual_seed(1000 * (step % 2) + rank)
    return torch.randint(1, VOCABULARY, (2, 16), generator=generator)


def alone(model, optimizer, steps, clip=None):
    """This rank's losses of one process that takes the batches of all ranks."""
    import torch
    losses = []
    for step in range(steps):
        for rank in range(ranks.size()):
            tokens = batch_of(step, rank)
            loss = model(input_ids=tokens, labels=tokens).loss
            (loss / ranks.size()).backward()
            if rank == ranks.rank():
                losses.append(loss.item())
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def together(model, optimizer, steps, clip=None):
    """The same of this rank among others."""
    import torch
    losses = []
    for step in range(steps):
        tokens = batch_of(step, ranks.rank())
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
