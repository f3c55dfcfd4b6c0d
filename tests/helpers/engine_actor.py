"""What stands for an engine's Ray actor and for agents in the tests of openrlhf_sagc/engine."""

import asyncio
import itertools
import time
from types import SimpleNamespace

import torch
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

from openrlhf_sagc.decisions.records import ROLLOUT, Collect, Dispatch, Prompt, Share
from openrlhf_sagc.engine.rollouts import stop_rollouts, watch_rollouts

ENDLESS = 10**6  # tokens
VOCABULARY = 1000  # tokens
UNFINISHED_FIELDS = {"prompt", "label", "images", ROLLOUT}  # of a response


class Actor:
    """OpenRLHF's engine actor: vLLM takes `submit` seconds to register a request and 5 ms for each token."""

    kind = "engine"
    kwargs = {"seed": 0}  # of vLLM

    def __init__(self, executor, submit=0.0, statistics=True, timeout=30.0, retries=0, tokenizer=None, **limits):
        self.executor = executor
        self.submit, self.statistics = submit, statistics
        self.requests = {}
        self.called = []  # methods of vLLM's workers
        self.places = itertools.count()  # of rollouts in their groups
        self.waiting = {}  # for dispatched rollouts: futures by group and place
        self.collecting = None
        self.resets = iter(())  # what vLLM says to those of the prefix cache
        self.llm = SimpleNamespace(
            errored=False,
            abort=self._abort,
            generate=self._generate,
            model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY),
            output_processor=SimpleNamespace(external_req_ids=self.requests),
            reset_prefix_cache=self._reset,
            collective_rpc=self._rpc,
        )
        self.hf_tokenizer = tokenizer or Tokenizer()
        watch_rollouts(self, timeout=timeout, retries=retries, **limits)

    async def _abort(self, request_ids):
        for request_id in request_ids:
            if request_id in self.requests:
                self.requests.pop(request_id).set()

    async def _rpc(self, method, args=()):
        self.called.append((method, *args))
        return [{"tokens": 5}]

    async def _reset(self):
        return next(self.resets)

    def get_num_unfinished_requests(self):
        return len(self.requests)

    generate = RolloutRayActor.__ray_metadata__.modified_class.generate
    _mm_pad_token_ids = None  # its

    async def _generate(self, tokens, sampling_params, request_id):
        await asyncio.sleep(self.submit)
        aborted, token_ids = asyncio.Event(), []
        self.requests[request_id] = aborted
        while len(token_ids) < sampling_params.max_tokens and not aborted.is_set():
            await asyncio.sleep(0.005)
            token_ids.append(7)
        self.requests.pop(request_id, None)
        reason = "abort" if aborted.is_set() else "stop"
        output = SimpleNamespace(token_ids=token_ids, text="text", finish_reason=reason, logprobs=None)
        stats = SimpleNamespace(queued_ts=5.0, scheduled_ts=5.3) if self.statistics else None
        yield SimpleNamespace(outputs=[output], metrics=stats)

    def request(self, label="", max_tokens=5):
        """The arguments of OpenRLHF's executors."""
        return {
            "prompt": "prompt",
            "label": label,
            "sampling_params": SimpleNamespace(max_tokens=max_tokens, logprobs=None),
            "max_length": 2 * ENDLESS,
            "hf_tokenizer": self.hf_tokenizer,
            "llm_engine": self,
            "images": None,
        }

    async def rollout(self, *request, **named):
        return await self.executor.execute(**self.request(*request, **named))

    async def group(self, number, *tokens, label=""):
        """The responses of a group's rollouts, each of so many tokens, which are dispatched and collected."""
        futures = []
        for count in tokens:
            share = Share(number, Prompt("prompt", label, None, 1), (next(self.places),))
            futures.append(asyncio.get_running_loop().create_future())
            self.waiting[number, *share.places] = futures[-1]
            await self.executor.execute(**self.request(max_tokens=count) | {"prompt": Dispatch([share])})
        if self.collecting is None or self.collecting.done():
            self.collecting = asyncio.create_task(self._collect())
        return await asyncio.gather(*futures)

    async def _collect(self):
        while self.waiting:
            for number, place, response in await self.executor.execute(prompt=Collect(), llm_engine=self):
                self.waiting.pop((number, place)).set_result(response)

    async def stopped_when(self, condition, rollouts):
        """The rollouts' responses, all stopped once `condition` holds; and nothing of them is left."""
        tasks = [asyncio.ensure_future(rollout) for rollout in rollouts]
        while not condition():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        await asyncio.to_thread(stop_rollouts, self)  # as Ray does
        responses = await asyncio.wait_for(asyncio.gather(*tasks), 10)
        for response in responses:
            assert (
                response[ROLLOUT].stopped
                and response[ROLLOUT].failure is None
                and response.keys() == UNFINISHED_FIELDS
            )
        return responses


def answer_of(output):
    """An agent's response of a prompt of two tokens and vLLM's output."""
    tokens = output.outputs[0].token_ids
    return {"reward": 1.0, "observation_tokens": [1, 2, *tokens], "action_ranges": [(2, 2 + len(tokens))]}


class Tokenizer:
    def note(self, text):
        """Is told every text."""

    def __call__(self, text, add_special_tokens, return_tensors):
        self.note(text)
        return {"input_ids": torch.tensor([[1, 2, 3]])}

    def decode(self, tokens, skip_special_tokens):
        return f"{len(tokens)} tokens"


class Agent:
    """Executor whose `attempts` say what each call does after one request: an exception, or the reward returned."""

    def __init__(self, *attempts):
        self.attempts = iter(attempts)

    async def execute(self, prompt, sampling_params, llm_engine, **kwargs):
        assert llm_engine.kind == "engine"
        output = await llm_engine.generate([1, 2], sampling_params)
        attempt = next(self.attempts)
        if isinstance(attempt, BaseException):
            raise attempt
        return answer_of(output) | {"reward": attempt}


def run(coroutine):
    """Its result; fails where it hangs."""
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def until(condition):
    """The condition as a function that fails after ten seconds."""
    end = time.monotonic() + 10

    def check():
        assert time.monotonic() < end
        return condition()

    return check


def calls(executor):
    return executor.reward_func.__globals__["calls"]
