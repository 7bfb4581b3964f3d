"""Functions and answers that try to hang a run, to reach out of their process, to forge rewards."""

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from experiments.families import sandbox
from experiments.families.reasoning_gym.family import ReasoningGym, ReasoningGymOptions
from experiments.families.sandbox import OutOfTimeError, Sandbox, SandboxError
from learner.chat import Completion

SECONDS = 0.2
REFUSED = re.compile("Operation not permitted")
LATE = re.compile(f"more than {SECONDS} s of processor time")
STRANGE = re.compile("something else was written")
ENDED = re.compile("its process ended with -")
SEVERAL = re.compile("not permitted|not allowed|unable to open database file")
FORGED = '{"id": 1}\n[1000000.0, ""]\n'

#: What it returns takes some of its seconds to write.
LONG = "return 'x' * (1 << 24)"
#: The body of a function, and what becomes of a call: an error, or what it returns.
FUNCTIONS = [
    # They do not come back.
    ("while True: pass", LATE),
    ("time.sleep(60)", LATE),
    ("signal.setitimer(signal.ITIMER_PROF, 0)\nwhile True: pass", LATE),
    ("signal.alarm(1); signal.alarm(0)\nwhile True: pass", LATE),
    ("[signal.signal(n, signal.SIG_IGN) for n in (2, 14, 15, 24, 27)]\nwhile True: pass", LATE),
    ("os.close(0); threading.Event().wait()", LATE),
    ("9**9**9**9", LATE),
    ("re.match('(a+)+$', 'a' * 50 + 'b')", LATE),
    ("os.closerange(3, 64)\nwhile True: pass", re.compile("process ended")),
    # They end their process.
    ("os._exit(3)", re.compile("its process ended with 3")),
    ("os._exit(0)", re.compile("its process ended with 0")),
    ("os.abort()", ENDED),
    ("ctypes.string_at(0)", re.compile("its process ended with -11")),
    ("resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))", SEVERAL),
    # They raise.
    ("sys.exit()", re.compile("SystemExit")),
    ("raise KeyboardInterrupt", re.compile("KeyboardInterrupt")),
    ("raise Strange", re.compile("its process ended with 1")),
    ("f = lambda: f(); f()", re.compile("RecursionError")),
    ("{}['txt']", re.compile(r"KeyError: 'txt' \(functions\.py:\d+, in f18\)")),
    # They need too much memory, or return what cannot be sent.
    ("bytearray(1 << 40)", re.compile("MemoryError")),
    ("return object()", re.compile("TypeError: it returned <object .*, and JSON has no object")),
    ("return float('nan')", float("nan")),
    ("x = []; x.append(x); return x", re.compile("ValueError: Circular")),
    ("x = []\nfor _ in range(10**5): x = [x]\nreturn x", re.compile("RecursionError")),
    ("return 10**5000", re.compile("ValueError")),
    ("return '\\ud800'", "\ud800"),
    (LONG, "x" * (1 << 24)),
    # They write where replies go.
    (f"os.write(1, {FORGED!r}.encode()); return 1", 1),
    (f"print({FORGED!r}); return 1", 1),
    (f"everywhere({FORGED!r}.encode()); return 1", STRANGE),
    ("everywhere(b'x' * 1000); return 1", STRANGE),
    ("everywhere(b'\\xff\\n'); return 1", STRANGE),
    ("everywhere(b'f' * 32 + b' [1, \"\"]\\n'); return 1", STRANGE),
    ("threading.Timer(0.05, everywhere, [b'late\\n']).start(); time.sleep(0.1); return 1", STRANGE),
    # They write elsewhere.
    ("open(path, 'w')", REFUSED),
    ("open(__file__, 'r+')", REFUSED),
    ("os.open(path, os.O_CREAT)", REFUSED),
    ("os.mkdir(path)", REFUSED),
    ("os.mknod(path)", REFUSED),
    ("os.mkfifo(path)", REFUSED),
    ("os.symlink(path, path)", REFUSED),
    ("os.link(__file__, path)", REFUSED),
    ("os.rename(__file__, path)", REFUSED),
    ("os.remove(__file__)", REFUSED),
    ("os.truncate(__file__, 0)", REFUSED),
    ("os.chmod(__file__, 0)", REFUSED),
    ("os.chown(__file__, 1, 1)", REFUSED),
    ("os.utime(__file__)", REFUSED),
    ("os.setxattr(__file__, 'user.x', b'x')", REFUSED),
    ("sqlite3.connect(path).execute('create table t (x)')", SEVERAL),
    # They start processes, open sockets, signal others, read secrets.
    ("os.fork()", REFUSED),
    ("os.posix_spawn('/bin/true', ['true'], {})", REFUSED),
    ("subprocess.run(['true'])", REFUSED),
    ("return os.system('true') >> 8", 127),
    ("os.execv('/bin/true', ['true'])", REFUSED),
    ("socket.socket()", REFUSED),
    ("socket.create_connection(('127.0.0.1', 9))", REFUSED),
    ("socket.socket(socket.AF_UNIX)", REFUSED),
    ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", REFUSED),
    ("os.kill(os.getppid(), 0)", REFUSED),
    ("os.killpg(0, 9)", REFUSED),
    ("os.pidfd_open(os.getppid())", REFUSED),
    ("os.sched_setaffinity(os.getppid(), {0})", REFUSED),
    ("os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))", REFUSED),
    ("return ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)", -1),
    ("return os.environ.get('OPENAI_API_KEY')", None),
    ("return 'OPENAI' in open('/proc/self/environ').read()", False),
    ("open(f'/proc/{os.getppid()}/environ')", re.compile("Permission denied")),
    ("open(f'/proc/{os.getppid()}/mem')", re.compile("Permission denied")),
    ("return os.getuid() - os.stat(__file__).st_uid", 0),
]  # fmt: skip
PREAMBLE = """
import ctypes, os, re, resource, signal, socket, sqlite3, subprocess, sys, threading, time
assert os.environ["OPENAI_API_KEY"] == "secret"  # Imports may use it.
path = os.path.join(os.path.dirname(__file__), "written")
class Strange(Exception):
    def __str__(self): os._exit(1)
def everywhere(data):
    for fd in range(64):
        try: os.write(fd, data)
        except OSError: pass
def add(a, b): return a + b
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    path = tmp_path_factory.mktemp("box") / "functions.py"
    text = [PREAMBLE]
    for i, (body, _) in enumerate(FUNCTIONS):
        text.append(f"def f{i}():\n  " + body.replace("\n", "\n  "))
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "secret")
        box = Sandbox(path)
        yield box
        box.close()


@pytest.mark.parametrize("index", range(len(FUNCTIONS)), ids=[body[:50] for body, _ in FUNCTIONS])
def test_a_function_has_its_stated_outcome_and_the_next_call_its_own(box, index):
    body, outcome = FUNCTIONS[index]
    seconds = 2.0 if body == LONG else SECONDS
    begin = time.monotonic()
    if isinstance(outcome, re.Pattern):
        with pytest.raises(SandboxError, match=outcome) as caught:
            box.call(f"f{index}", seconds=SECONDS)
        assert (outcome is LATE) == isinstance(caught.value, OutOfTimeError)
    else:
        assert repr(box.call(f"f{index}", seconds=seconds)) == repr(outcome)
    assert time.monotonic() - begin < 10 * SECONDS + 5
    assert box.call("add", index, 1, seconds=1.0) == index + 1
    assert os.listdir(os.path.dirname(box._path)) == ["functions.py"]


@pytest.mark.parametrize("seconds", [3e6, 3e8])
def test_a_limit_may_be_years(box, seconds):
    assert box.call("add", 1, 1, seconds=seconds) == 2


def test_after_ctrl_c_replies_belong_to_their_calls(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Background jobs ignore it.
    path = tmp_path / "functions.py"
    path.write_text("import time\ndef same(x): time.sleep(x / 10); return x\n")
    box = Sandbox(path)
    assert box.call("same", 0, seconds=1.0) == 0
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        box.call("same", 9, seconds=1.0)
    signal.signal(signal.SIGINT, before)
    assert [box.call("same", i, seconds=1.0) for i in (1, 2, 3)] == [1, 2, 3]
    box.close()


def test_calls_run_at_once_and_one_that_was_late_is_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "WORKERS", 4)
    path = tmp_path / "functions.py"
    path.write_text("import time\ndef same(x): time.sleep(0.5 * (x < 0)); return x\n")
    box = Sandbox(path)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda x: box.call("same", x, seconds=9.0), range(4)))  # They start.
        begin = time.monotonic()
        assert list(pool.map(lambda x: box.call("same", x, seconds=9.0), (-1, -2, -3, -4))) == [
            *(-1, -2, -3, -4)
        ]
    assert time.monotonic() - begin < 1.9
    begin = time.monotonic()
    for _ in range(50):
        with pytest.raises(OutOfTimeError):
            box.call("same", -5, seconds=0.02)
    assert time.monotonic() - begin < 5
    box.close()


def test_a_file_that_cannot_be_imported_is_said_with_its_line(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text("import os\n1 / 0\n")
    with pytest.raises(SandboxError, match=r"ZeroDivisionError.*\(functions\.py:2, in <module>\)"):
        Sandbox(path).call("f", seconds=1.0)


#: Answers that would reach beyond their own evaluation, for data sets that evaluate them.
ANSWERS = [
    "__import__('os').write(4, b'[1000000.0, \"\"]\\n')",
    "[__import__('os').write(fd, b'[1.0, \"\"]\\n') for fd in range(64)]",
    "__import__('os').system('touch WRITTEN')",
    "open('WRITTEN', 'w')",
    "exec('import os')",
    "eval('().__class__')",
    "().__class__.__base__.__subclasses__()",
    "(lambda: 0).__globals__['__builtins__']",
    "setattr(__import__('builtins'), 'float', lambda x: 24)",
    "[setattr(m, 'score', 1) for m in __import__('sys').modules.values()]",
    "exit()",
    "sympify('__import__(\"os\").getpid()')",
    "lambdify(1, '__import__(\"os\").getpid()')(1)",
    "getattr(Integer, 'mro')()",
]
EVALUATING = ("countdown", "intermediate_integration", "spiral_matrix", "n_queens", "puzzle24")


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_gets_no_more_than_a_wrong_one(name, tmp_path):
    family = ReasoningGym(ReasoningGymOptions(levels=1), name)
    family.verify_seconds = 2.0
    problem = family.generate(jax.random.key(0), family.space.uniform(), 1, ()).problems[0]
    right = problem["answer"] or {"countdown": None}.get(name)
    texts = [answer.replace("WRITTEN", str(tmp_path / "w")) for answer in ANSWERS]
    texts = [one for text in texts for one in (text, f"<answer>{text}</answer>", right or "0")]
    completions = [Completion(text, 1, False) for text in (*texts, "wrong")]
    found = family.task([problem]).score(np.zeros(len(texts) + 1, int), completions)
    wrong = found.rewards[-1]
    assert wrong < 0.1
    assert max(found.rewards[0:-1:3]) <= wrong
    assert max(found.rewards[1:-1:3]) <= wrong
    assert not right or min(found.rewards[2:-1:3]) == 1
    assert not list(tmp_path.iterdir())
    assert len(ANSWERS) * len(EVALUATING) == 70
