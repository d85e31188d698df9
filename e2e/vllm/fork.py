"""Starts vLLM servers from one process that has imported vLLM once, which saves most of their start.

Reads lines of JSON from stdin, {"dir": …, "log": …, "args": ["serve", …]}, forks a server for each in a session of its own and
answers with its pid. At the end of stdin, which is also that of whoever asked, it kills those that still run.
"""
import json, os, signal, sys

os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
import vllm.entrypoints.cli.main as cli
import vllm.entrypoints.cli.serve, vllm.entrypoints.openai.api_server  # noqa: E401,F401
import vllm.v1.engine.core, vllm.v1.executor.multiproc_executor, vllm.v1.worker.cpu_worker  # noqa: E401,F401
from vllm.model_executor.models import registry
from vllm.platforms.cpu import CpuPlatform

set_up = CpuPlatform.check_and_update_config.__func__


def check_and_update_config(cls, config):
    set_up(cls, config)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # it asks for spawn, which imports everything again, twice


CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
registry._run_in_subprocess = lambda call: call()  # looks at a model's class in a process of its own, which imports everything too
for number in signal.SIGCHLD, signal.SIGINT, signal.SIGTERM:  # the last two go to whoever asked as well: then stdin ends
    signal.signal(number, signal.SIG_IGN)
servers = []
print("ready", flush=True)
while line := sys.stdin.readline():
    told = json.loads(line)
    if pid := os.fork():
        servers.append(pid)
        print(pid, flush=True)
        continue
    os.setsid()
    for number in signal.SIGCHLD, signal.SIGINT, signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
    os.chdir(told["dir"])
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for fd in 1, 2:
        os.dup2(log, fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["vllm", *told["args"]]
    sys.exit(cli.main())
for pid in servers:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
