"""vLLM's kernel for CPUs that gives each drafted token its request's temperature."""

import pytest
import torch
from vllm.utils import cpu_triton_utils

from openrlhf_sagc.engine.draft_repair import expand, repair


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_token_gets_the_value_of_its_request(dtype):
    values, ends = torch.tensor([0, 5, 7], dtype=dtype), torch.tensor([2, 2, 5], dtype=torch.int32)
    output = torch.full((5,), 99, dtype=dtype)
    expand(output, values, ends, 0, 1, MAX_NUM_TOKENS=32)
    assert output.tolist() == [1, 1, 7, 7, 7]


def test_only_a_kernel_that_is_wrong_is_replaced(monkeypatch):
    calls = []

    def right(output, *args, **kwargs):
        calls.append(output)
        expand(output, *args, **kwargs)

    monkeypatch.setattr(cpu_triton_utils.expand_kernel, "func", right)
    repair()
    assert calls and cpu_triton_utils.expand_kernel.func is right
    monkeypatch.setattr(cpu_triton_utils.expand_kernel, "func", lambda *args, **kwargs: None)
    repair()
    assert cpu_triton_utils.expand_kernel.func is expand
