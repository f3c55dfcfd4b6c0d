"""Makes the outline of a reward's or agent's file in a process of its own, and says why OpenRLHF cannot use the file.

`python -m openrlhf_sagc.config.plug_in_import NAME FILE DESCRIPTOR` writes {"problem": "", "of_gpu": false} there.
"""

import inspect
import json
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from openrlhf_sagc.config import plug_in_source
from openrlhf_sagc.config.plug_in_outline import Unknown, outline

REWARD, AGENT = "reward_func", "AgentExecutor"
SAMPLE = ("queries", "prompts", "labels")  # what a reward function is called with, by place
ROLLOUT = ("prompt", "label", "sampling_params", "max_length", "hf_tokenizer", "llm_engine", "images")  # by name


def problem_of(name: str, module: ModuleType) -> str:
    """Why the module's reward_func or AgentExecutor cannot be called as OpenRLHF does; empty if it can, or is not known."""
    plug_in = getattr(module, name, None)
    if plug_in is None:
        return f"has no {name}"
    if isinstance(plug_in, Unknown):
        return ""
    return (
        _reward_problem(plug_in) if name == REWARD else _agent_problem(plug_in) or _instance_problem(plug_in, module)
    )


def _reward_problem(function: Any) -> str:
    if not callable(function):
        return f"has a {REWARD} that is a {type(function).__name__}, not a function"
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):
        return f"has an async {REWARD}, which nobody awaits: use def instead of async def"
    if inspect.isgeneratorfunction(function):
        return f"has a {REWARD} with yield, which returns no reward: use return"
    if not takes(function, *SAMPLE):
        return f"has a {REWARD}{_signature(function)}, which is called as {REWARD}({', '.join(SAMPLE)}): take these three, and give any other a default"
    return ""


def _agent_problem(executor: Any) -> str:
    from openrlhf.utils.agent import AgentExecutorBase

    if not (inspect.isclass(executor) and issubclass(executor, AgentExecutorBase)):
        return f"has an {AGENT} that is not a subclass of openrlhf.utils.agent.AgentExecutorBase: make it one"
    cls: Any = executor
    if problem := _class_problem(cls, f"an {AGENT}", "define it, as an async method", "execute"):
        return problem
    if not inspect.iscoroutinefunction(cls.execute):
        return f"has an {AGENT} whose execute is not async: use async def execute"
    if not takes(cls.execute, None, **dict.fromkeys(ROLLOUT)):
        return (
            f"has an {AGENT} with execute{_signature(cls.execute)}, which is called with {', '.join(ROLLOUT)} by their names: "
            "take all of them, or **kwargs"
        )
    return ""


def _instance_problem(executor: Any, module: ModuleType) -> str:
    """Why the module's one class of environments cannot be made for a sample, as MultiTurnAgentExecutor does."""
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

    classes = [cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__]
    classes = [cls for cls in classes if issubclass(cls, AgentInstanceBase)]
    last = [cls for cls in classes if not any(cls in other.__mro__[1:] for other in classes)]
    unknown = any(isinstance(value, Unknown) and value.may_be_class for value in vars(module).values())
    if not issubclass(executor, MultiTurnAgentExecutor) or len(last) != 1 or unknown:
        return ""
    cls: Any = last[0]
    if problem := _class_problem(cls, f"a class {cls.__name__}", "define it", "reset"):
        return problem
    for method in ("reset", "step"):
        if not inspect.iscoroutinefunction(getattr(cls, method)):
            return f"has a class {cls.__name__} whose {method} is not async: use async def {method}"
    return ""


def _class_problem(cls: Any, what: str, define: str, first: str) -> str:
    """Why no object of a class can be made without arguments; `first` is the method that may await."""
    if inspect.isabstract(cls):
        return f"has {what} without {', '.join(sorted(cls.__abstractmethods__))}: {define}"
    if inspect.iscoroutinefunction(cls.__init__):
        return f"has {what} with an async __init__: use def, and await in {first}"
    if not takes(cls):
        return f"has {what}{_signature(cls)}, which is made without arguments: give each a default"
    return ""


def takes(function: Any, *arguments, **named) -> bool:
    """Whether it can be called so, as far as its signature says."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # a builtin has no signature
        return True
    return True


def _signature(function: Any) -> str:
    return str(inspect.signature(function))


def where(error: BaseException, path: str) -> str:
    """The error, with the last line of the file that was running."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {' '.join(str(error).split())}"


def _looked_at(name: str, path: str) -> dict[str, Any]:
    try:
        module, has_more = outline(plug_in_source.parse(path), path)
        problem = problem_of(name, module)
        return {"problem": "" if has_more and not hasattr(module, name) else problem, "of_gpu": False}
    except BaseException as error:  # sys.exit in a module ends an engine too
        text = where(error, path)
        of_gpu = any(word in text.lower() for word in ("cuda", "nvidia", "gpu")) and not isinstance(error, ImportError)
        return {"problem": f"cannot be imported: {text}", "of_gpu": of_gpu}


if __name__ == "__main__":
    result = json.dumps(_looked_at(*sys.argv[1:3]))
    os.write(
        int(sys.argv[3]),
        result[:60_000].encode() if len(result) < 60_000 else b'{"problem": "cannot be imported", "of_gpu": false}',
    )
    os._exit(0)  # threads that a module has started do not keep the process
