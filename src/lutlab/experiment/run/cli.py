"""The command line around Hydra: a user's mistakes end in one message and an exit code, see ending.py."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import lutlab
from lutlab.base import registry, sources
from lutlab.base.errors import LutlabError, Mistakes, nearest
from lutlab.base.fields import MISSING, Key, spelled
from lutlab.experiment.row import mistakes
from lutlab.experiment.row.row import (
    Row,
    check_presets,
    choices,
    default_choice,
    evaluator_keys,
    method_keys,
    register_choices,
    row_keys,
)
from lutlab.experiment.run import additions
from lutlab.experiment.run.ending import ended

# Hydra's launchers that an extra of lutlab brings.
_LAUNCHERS = {
    "hydra/launcher/submitit_local": "submitit",
    "hydra/launcher/submitit_slurm": "submitit",
}
_WIDEST = 120  # characters of a line of --help
# The first word of a line that is no sweep -> what it does; <word>_command.py reads the others.
COMMANDS = {
    "quantize": "a model into a folder, smaller",
    "chat": "a conversation with a model",
    "generate": "a model continues a text",
    "export": "a quantized folder as GGUF, or in the layouts of GPTQ and compressed-tensors",
    "results": "find, show, measure again, compare and clear away what was measured",
    "fetch": "download a model now, for runs without a network",
    "workspaces": "views and reports on a server of Weights & Biases",
}
# Groups of keys, in the order of --help -> what they decide.
GROUPS = {
    "model": "the model: a preset, a folder, a GGUF file, owner/name of the hub",
    "method": "the method, and its options as method.<option>",
    "weights": "bits, groups, budgets and exceptions: q, g, budget, candidates, layers, sublayers, skip",
    "calibration": "the text that calibrated methods look at",
    "tuning": "training after quantization",
    "evaluate": "what is measured, on which text; options as evaluator.<name>.<option>",
    "data": "where texts come from, how much of them is read, texts of your own",
    "run": "mode, device, dtype, threads, seed, results, rows, name: where and how it runs",
    "logger": "Weights & Biases",
    "dashboard": "the page of mode=dashboard",
    "product": "one product of two matrices: kernel, knobs, mu",
}
_WEIGHTS = ("q", "g", "budget", "candidates", "layers", "sublayers", "skip")
_PRODUCT = ("kernel", "knobs", "mu")


def run(main: Callable[[], None]) -> int:
    """Run Hydra's main; returns the exit code."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra would print and exit by itself; we say what to do
    # Hydra 1.3 and its launchers use argparse and pkg features that newer Pythons deprecate; not the user's business
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"hydra.*")
    return ended(lambda: _run(main))


def composed(arguments: Sequence[str], refused: Sequence[str], words: Iterable[str] = ()) -> Row:
    """The settings of one row, for a command that runs one, has `words` of its own, and does not read `refused` keys.

    Raises:
        Mistakes: all among the arguments, a swept value too.
    """
    with _words_of_ours():
        overrides = mistakes.read(additions.read(arguments), words=words)
        messages = [
            f"{override.input_line}: it is of a table or a sweep; drop it"
            if override.key_or_group in refused
            else f"{override.input_line}: one model is run; give one value"
            for override in OverridesParser.create().parse_overrides(overrides)
            if override.key_or_group in refused or override.is_sweep_override()
        ]
        if messages:
            raise Mistakes(messages)
        with composing() as compose:
            return compose(overrides)


@contextlib.contextmanager
def composing() -> Iterator[Callable[[Sequence[str]], Row]]:
    """Overrides -> the settings of a row, in a block outside of Hydra's own main."""
    from hydra import compose, initialize_config_dir

    register_choices()
    with initialize_config_dir(str(sources.folder("conf")), version_base="1.3"):
        yield lambda overrides: Row.of(compose("config", list(overrides)))


def _run(main: Callable[[], None]) -> None:
    with _words_of_ours():
        arguments = _read(additions.read(sys.argv[1:] or ["--help"]))
        if arguments is not None:
            sys.argv[1:] = arguments
            register_choices()
            main()


@contextlib.contextmanager
def _words_of_ours() -> Iterator[None]:
    """Hydra's errors as a LutlabError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise LutlabError(_in_our_words(error)) from error
    except ValueError as error:
        # Hydra's own, where --config-name hands it a line that nobody else has read
        if not str(error).startswith("Config group override"):
            raise
        raise LutlabError(f"{error}: give a group the name of one of its choices") from error


def _read(arguments: Sequence[str]) -> list[str] | None:
    """Arguments in Hydra's form; None where the line is --help or --version."""
    # Hydra's own parser: it alone knows which of its options take a value
    from hydra._internal.utils import get_args_parser

    if "--version" in arguments:  # Hydra would print its own
        print(f"lutlab {lutlab.__version__}")
        return None
    typed, rest = get_args_parser().parse_known_args(arguments)
    if typed.experimental_rerun is not None:
        raise LutlabError(
            f"--experimental-rerun={typed.experimental_rerun}: Hydra would unpickle that file, which can run any code; "
            "`lutlab results rerun <cell>` measures a cell again from its record"
        )
    presets = [Path(typed.config_dir)] if typed.config_dir else []
    check_presets(presets)
    if typed.help:
        topics = [word for word in typed.overrides if re.match(r"[^=]*$|(method|evaluator)=", word)]
        print(help_of(topics, presets))
        return None
    if meant := [close for word in typed.overrides[:1] for close in _commands_like(word)]:
        raise LutlabError(
            f"no command '{typed.overrides[0]}': did you mean '{meant[0]}'? known: {', '.join(COMMANDS)}"
        )
    exclusive = ("multirun", "cfg", "info", "shell_completion")
    modes = [f"--{name}" for name in exclusive if getattr(typed, name)]
    if len(modes) > 1:
        raise LutlabError(f"{' and '.join(modes)}: give one of them".replace("_", "-"))
    if typed.shell_completion and not any(map(_is_completion, typed.overrides)):
        raise LutlabError(
            "-sc wants install=bash or uninstall=bash (or fish, zsh); the shell itself asks by query="
        )
    # A line not complete yet, or a user's own schema.
    if typed.shell_completion or typed.config_name:
        return list(arguments)
    overrides = [*typed.overrides, *(word for word in rest if not word.startswith("-"))]
    options = [argument for argument in arguments if argument not in overrides]
    messages = [_unknown_option(option) for option in rest if option.startswith("-")]
    messages += _without_use(typed)
    try:
        overrides = mistakes.read(overrides, presets)
    except Mistakes as error:
        messages += error.said
    if messages:
        raise Mistakes(messages)
    # conf/config.yaml says --multirun too, but Hydra forgets that where an override is wrong, and blames the sweep
    return [*overrides, *(options or ["--multirun"])]


def _commands_like(word: str) -> list[str]:
    """Commands that a word without a value may have meant."""
    return [] if "=" in word else difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.75)


def _is_completion(override: str) -> bool:
    key = override.partition("=")[0]
    return key in ("install", "uninstall") or (key == "query" and "COMP_LINE" in os.environ)


def _without_use(typed: argparse.Namespace) -> Iterator[str]:
    """Mistakes of Hydra's options beside each other."""
    if typed.run:
        yield "--run: every call is a sweep, of one row or more: drop it"
    if not typed.cfg:
        for name in ("resolve", "package"):
            if getattr(typed, name):
                yield f"--{name} is read with --cfg=job only: give it too, or drop --{name}"


def _unknown_option(option: str) -> str:
    bare = option.lstrip("-")
    cure = f"write {bare}" if "=" in bare else f"write {bare}=<value> if it is a key"
    return f"no option '{option}': {cure}; --help names all keys, --hydra-help the options"


def _in_our_words(error: Exception) -> str:
    """Message for an error that Hydra finds: its own keys, presets of the user's, a row's contradiction.

    Its advice to append by `+` is left out: it would add a key that nobody reads.
    """
    missing, options = getattr(error, "missing_cfg_file", "") or "", getattr(error, "options", None)
    if plugin := _LAUNCHERS.get(missing):
        return f"{missing.replace('launcher/', 'launcher=')} is not installed: pip install 'lutlab[{plugin}]'"
    if missing and options:
        group, _, name = missing.rpartition("/")
        return f"unknown {group} '{name}': {nearest(name, options)}"
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if key := re.match(r"Could not (?:override|append to config) '?([\w.@/]+)", text):
        owner = "launcher" if key[1].startswith("hydra.launcher") else key[1].partition(".")[0]
        return f"no key '{key[1]}' of the {owner} chosen here: drop it, or choose one that has it"
    lines = [line for line in text.splitlines() if line.strip() and "See https" not in line]
    cause = str(error.__cause__).partition("\n")[0] if error.__cause__ else ""
    return "\n".join([*lines[:6], *filter(None, [cause])])


# ---- --help ----


def help_of(topics: Sequence[str], config_dirs: Sequence[Path] = ()) -> str:
    """The page of `--help <topic>`: without a topic one screen, `all` everything, else a group, a method, an evaluator.

    Raises:
        LutlabError: a topic that is none of these.
    """
    if not topics:
        return short_page()
    return "\n\n".join(
        help_page(config_dirs) if t == "all" else _topic(t, config_dirs) for t in topics
    )


def short_page() -> str:
    """One screen: what lutlab is, examples, commands, groups of keys, and how to see more."""
    header = OmegaConf.load(sources.folder("conf") / "config.yaml").hydra.help.header
    lines = [header.rstrip(), "", "Commands, each with a --help of its own:"]
    lines += [f"  {name:<13}{about}" for name, about in COMMANDS.items()]
    lines += ["", "Keys, <key>=<value>; values with commas between them are a sweep:"]
    lines += [f"  {name:<13}{about}" for name, about in GROUPS.items()]
    topics = "--help <group>, --help method=gptq, --help evaluator=ppl, --help all; --hydra-help for Hydra's options"
    return "\n".join([*lines, "", f"More: {topics}", "Words: docs/concepts.md has a glossary"])


def _topic(topic: str, config_dirs: Sequence[Path]) -> str:
    """Keys of a group, of a method or of an evaluator."""
    width = _width()
    kind, _, name = topic.partition("=")
    if kind == "method" and name:
        return "\n".join(_of_method(name, width))
    if kind == "evaluator" and name:
        return "\n".join(_of_evaluator(name, width))
    if topic not in GROUPS:
        known = [*GROUPS, "method=<name>", "evaluator=<name>", "all", *COMMANDS]
        raise LutlabError(f"--help {topic}: {nearest(topic, known)}")
    lines = [f"{topic}: {GROUPS[topic]}", ""]
    some = choices(config_dirs).get(topic, [])
    lines += [_wrapped(f"{topic}=  ", ", ".join(some), width), ""] if some else []
    lines += _listed((key for key in row_keys().values() if _group_of(key.name) == topic), width)
    if topic == "evaluate":
        lines += [
            "",
            *_wrapped("evaluators: ", ", ".join(registry.classes("evaluator")), width).splitlines(),
        ]
    return "\n".join(lines)


def _group_of(key: str) -> str:
    """Group of a key, as GROUPS has them."""
    first = key.partition(".")[0]
    if first in GROUPS:
        return first
    if first in _WEIGHTS:
        return "weights"
    return "product" if first in _PRODUCT else "run"


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def help_page(config_dirs: Sequence[Path] = ()) -> str:
    """The page of `--help all`, as wide as the terminal: the choices of every group, and every key.

    All of it is read where it is decided: the folders of presets, and the classes (base/fields.py).
    """
    width = _width()
    lines = ["== Choices: <group>=<choice> =="]
    groups = _by_folder(choices(config_dirs))
    lines += [_wrapped(f"{group}: ", ", ".join(names), width) for group, names in groups]
    lines += [
        "",
        "== Keys: <key>=<value>, here with the value they have unless a preset sets another ==",
    ]
    lines += _listed(row_keys().values(), width)
    for name in registry.classes("method"):
        lines += ["", *_of_method(name, width)]
    lines += ["", "== Evaluators: evaluate=[<name>, <name>:<text>] =="]
    for name in registry.classes("evaluator"):
        lines += _of_evaluator(name, width)
    return "\n".join([*lines, "", "Hydra's own options: --hydra-help"])


def _of_method(name: str, width: int) -> list[str]:
    """A method in a sentence, and its options."""
    about = _sentence(sys.modules[registry.lookup("method", name).__module__])
    chosen = " (unless you choose another)" if name == default_choice("method") else ""
    head = textwrap.wrap(f"method={name}{chosen}: {about}", width)
    return [*head, *_listed(method_keys(name).values(), width)]


def _of_evaluator(name: str, width: int) -> list[str]:
    """An evaluator in a sentence, and its options; its own sentence where its module has several."""
    cls = registry.lookup("evaluator", name)
    several = sum(
        other.__module__ == cls.__module__ for other in registry.classes("evaluator").values()
    )
    about = _sentence(cls if several > 1 else sys.modules[cls.__module__])
    lines = textwrap.wrap(f"{name}: {about}", width, subsequent_indent="    ")
    keys = evaluator_keys().values()
    return [*lines, *_listed((k for k in keys if k.name.startswith(f"evaluator.{name}.")), width)]


def _by_folder(groups: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """(group, choices), those in a folder of the group apart: exp/nuqmm: all, table3."""
    rows: dict[str, list[str]] = {}
    for group, names in groups.items():
        for name in names:
            folder, slash, leaf = name.rpartition("/")
            rows.setdefault(f"{group}/{folder}" if slash else group, []).append(leaf)
    return sorted((group, sorted(names)) for group, names in rows.items())


def _wrapped(label: str, text: str, width: int) -> str:
    return textwrap.fill(label + text, width, subsequent_indent="    ", break_on_hyphens=False)


def _listed(keys: Iterable[Key], width: int) -> list[str]:
    """Each key with its value, its meaning, and the values that there are."""
    lines = []
    for key in keys:
        values = f" [{' | '.join(key.values)}]" if key.values else ""
        known = key.default not in (MISSING, "") and not isinstance(key.default, dict)
        label = f"  {key.name}={spelled(key.default) if known else ''}"
        text = textwrap.wrap(key.about + values, width - 34) or [""]
        first = f"{label:<33} {text[0]}" if len(label) < 34 else f"{label}\n{'':34}{text[0]}"
        lines += [first, *(f"{'':34}{line}" for line in text[1:])]
    return lines


def _sentence(described: object) -> str:
    """What a module or a class says of itself first: its first sentence, or the paragraph where that is none."""
    paragraph = " ".join((described.__doc__ or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z)\]`]\.) (?=[A-Z])", paragraph)[0]
