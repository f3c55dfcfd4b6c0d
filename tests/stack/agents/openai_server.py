"""Agent that serves the engine it first gets to an OpenAI client, in a thread, as OpenRLHF's published one does.

A prompt's label is that of labelled_agent.py: "TOKENS SCORES". The client makes one call a rollout.
"""

import socket
import threading
import time
from collections import Counter
from uuid import uuid4

import uvicorn
from fastapi import FastAPI, Request
from openai import AsyncOpenAI
from openrlhf.utils.agent import AgentExecutorBase
from vllm import SamplingParams


class AgentExecutor(AgentExecutorBase):
    def __init__(self):
        self._client = None
        self._drawn = Counter()
        self._answers = {}

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        if self._client is None:
            self._client = AsyncOpenAI(base_url=self._serve(llm_engine, hf_tokenizer), api_key="none", max_retries=0)
        place = self._drawn[prompt]
        self._drawn[prompt] += 1
        usual, _, fifth = label.split()[0].partition("+")
        session = uuid4().hex
        await self._client.chat.completions.create(
            model="policy",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=int(fifth if fifth and place % 5 == 4 else usual),
            extra_body={"session": session},
        )
        tokens, answer = self._answers.pop(session)
        return {
            "prompt": prompt,
            "label": label,
            "observation_tokens": tokens + answer,
            "action_ranges": [(len(tokens), len(tokens + answer))],
            "rollout_log_probs": None,
            "truncated": False,
            "reward": float(place % 2),
            "scores": float(place % 2),
            "extra_logs": {"turns": 1},
        }

    def _serve(self, engine, tokenizer) -> str:
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def complete(request: Request):
            body = await request.json()
            tokens = tokenizer.encode(body["messages"][0]["content"], add_special_tokens=False)
            length = body["max_tokens"]
            output = await engine.generate(
                tokens, SamplingParams(min_tokens=length, max_tokens=length, ignore_eos=True)
            )
            answer = output.outputs[0]
            self._answers[body["session"]] = tokens, list(answer.token_ids)
            message = {"index": 0, "message": {"role": "assistant", "content": answer.text}, "finish_reason": "stop"}
            return {"id": "1", "object": "chat.completion", "created": 0, "model": "policy", "choices": [message]}

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.05)
        return f"http://127.0.0.1:{port}/v1"
