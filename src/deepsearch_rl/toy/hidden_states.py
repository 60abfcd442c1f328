"""Hidden states of the positions that a loss needs, for a fifth less work in a model of three layers.

A conversation is mostly read: one token of five or six is predicted. Every layer before the last one needs
all positions, and so do keys and values of the last one. But its queries, its projections and its
MLP serve no other position, so they are computed where something is predicted and nowhere else.
"""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3Model,
    rotate_half,
)


def hidden_states(decoder: Qwen3Model, tokens_BT: Tensor, wanted_BT: Tensor) -> Tensor:
    """Return the final hidden states of P wanted positions, [P, D], row by row.

    The B rows of T tokens are padded on the right, where no position before can see it.
    """
    hidden_BTD = decoder.embed_tokens(tokens_BT)
    positions_1T = torch.arange(tokens_BT.size(1), device=tokens_BT.device)[None]
    cos_1TH, sin_1TH = decoder.rotary_emb(hidden_BTD, positions_1T)
    *layers, last = decoder.layers

    for layer in layers:
        hidden_BTD = layer(hidden_BTD, attention_mask=None, position_embeddings=(cos_1TH, sin_1TH))

    # Rows want different numbers of positions: each is filled up with others, which are dropped
    wanted_per_row_B = wanted_BT.sum(dim=1)
    most = int(wanted_per_row_B.max())
    # Those that are wanted first, in their order
    places_BQ = (~wanted_BT).byte().argsort(dim=1, stable=True)[:, :most]
    is_wanted_BQ = positions_1T[:, :most] < wanted_per_row_B[:, None]
    last = cast(Qwen3DecoderLayer, last)
    hidden_BQD = _last_layer(last, hidden_BTD, places_BQ, cos_1TH[0], sin_1TH[0])
    return decoder.norm(hidden_BQD[is_wanted_BQ])


def _last_layer(
    layer: Qwen3DecoderLayer, hidden_BTD: Tensor, places_BQ: Tensor, cos_TH: Tensor, sin_TH: Tensor
) -> Tensor:
    """Return what the layer makes of the hidden states at Q places of every row, [B, Q, D]."""
    attention = layer.self_attn
    rows, length, width = hidden_BTD.shape
    gathered_BQD = places_BQ[..., None].expand(-1, -1, width)
    normed_BTD = layer.input_layernorm(hidden_BTD)
    normed_BQD = normed_BTD.gather(1, gathered_BQD)

    def heads(projected: Tensor) -> Tensor:
        return projected.view(rows, projected.size(1), -1, attention.head_dim)

    queries = attention.q_norm(heads(attention.q_proj(normed_BQD))).transpose(1, 2)
    keys = attention.k_norm(heads(attention.k_proj(normed_BTD))).transpose(1, 2)
    values = heads(attention.v_proj(normed_BTD)).transpose(1, 2)
    # [B, 1, Q, H]: the same for all heads
    cos_of_places, sin_of_places = cos_TH[places_BQ][:, None], sin_TH[places_BQ][:, None]
    queries = queries * cos_of_places + rotate_half(queries) * sin_of_places
    keys = keys * cos_TH + rotate_half(keys) * sin_TH

    sharing = attention.num_key_value_groups
    is_seen_BQT = torch.arange(length, device=places_BQ.device) <= places_BQ[..., None]
    mixed = functional.scaled_dot_product_attention(
        queries,
        keys.repeat_interleave(sharing, dim=1),
        values.repeat_interleave(sharing, dim=1),
        attn_mask=is_seen_BQT[:, None],
        scale=attention.scaling,
    )
    mixed_BQC = mixed.transpose(1, 2).reshape(rows, places_BQ.size(1), -1)
    hidden_BQD = hidden_BTD.gather(1, gathered_BQD) + attention.o_proj(mixed_BQC)
    return hidden_BQD + layer.mlp(layer.post_attention_layernorm(hidden_BQD))
