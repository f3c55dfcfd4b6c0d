"""What the hub's flash-attn2 gives, computed by PyTorch: the signatures that transformers looks at, and right values."""

import torch

CALLS: list[list[int]] = []  # the bounds of each pack

def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, deterministic=False,
):  # fmt: skip
    """[tokens, heads, size] of samples one behind the other, whose bounds are cu_seqlens."""
    assert causal and torch.equal(cu_seqlens_q, cu_seqlens_k) and cu_seqlens_q[-1] == len(q)
    bounds = cu_seqlens_q.tolist()
    CALLS.append(bounds)
    return torch.cat(
        [
            flash_attn_func(*(x[None, a:b] for x in (q, k, v)), softmax_scale=softmax_scale, causal=True)[0]
            for a, b in zip(bounds, bounds[1:])
        ]
    )


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False
):  # fmt: skip
    """[batch, tokens, heads, size]; k and v may have fewer heads."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True
    ).transpose(1, 2)


def flash_attn_with_kvcache(*_, **__):
    raise NotImplementedError("training has no cache")
