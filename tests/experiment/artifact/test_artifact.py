"""Every experiment file is valid, composes through Hydra, and its claims hold on the paper's own numbers."""

import itertools
import re

import pytest
import yaml
from tests.experiment.row.composing import settings

from lutlab.base import registry, sources
from lutlab.data.protocols import PROTOCOLS
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import EXPERIMENTS, artifacts
from lutlab.experiment.artifact.claims import judge
from lutlab.experiment.artifact.rows import OURS, REAL
from lutlab.experiment.report import compare
from lutlab.experiment.row.run import run_of
from lutlab.measure.products import ABSENT, KERNELS

LONG_NAMES = [name for name in artifacts() if "/" in name]


@pytest.mark.parametrize("name", LONG_NAMES)
def test_artifact_is_complete(name: str) -> None:
    artifact = load_artifact(name)
    assert artifact.name == name
    bibliography = (EXPERIMENTS / "references.bib").read_text()
    cited = {c.cited for c in artifact.columns.values() if c.cited}
    assert all(f"{{{key}," in bibliography for key in (artifact.citation, *cited))
    for column in artifact.columns.values():
        assert column.text is None or column.text in PROTOCOLS
        assert column.evaluator in registry.classes("evaluator")
    paper = {row.key for row in artifact.rows("paper")}
    for scale in ("embedded", "small"):
        keys = {row.key for row in artifact.rows(scale)}
        assert keys <= paper
        assert keys == paper or artifact.absent(scale)
        assert keys == paper or not artifact.published, "of a published number at every scale"


@pytest.mark.parametrize("name", LONG_NAMES)
def test_claims_hold_on_the_published_numbers(name: str) -> None:
    artifact = load_artifact(name)
    numbers = {row.key: dict.fromkeys(artifact.columns) for row in artifact.rows("paper")}
    for row, values in artifact.numbers().items():
        if row in numbers:
            numbers[row] |= {k: compare._number(v) for k, v in values.items()}
    for claim in artifact.claims:
        holding, decidable = judge(claim, numbers, numbers, artifact.curve("paper")).published
        assert holding == decidable, claim.text
        ours = claim.where == "ours"  # about rows and columns that the paper does not print
        assert decidable or not artifact.published or ours, claim.text
        assert claim.holds or claim.fronts


@pytest.mark.slow
def test_rows_compose() -> None:
    """A row of each method with each set of keys is a configuration; every model of every scale is a preset."""
    presets = {path.stem for path in (sources.folder("conf") / "model").glob("*.yaml")}
    methods = registry.classes("method")
    chosen = {}
    for name, scale in itertools.product(LONG_NAMES, ("embedded", "small", "real", "paper")):
        for row in load_artifact(name).rows(scale):
            named = dict(o.split("=") for o in row.overrides)
            if scale == "real" and not row.not_run:
                assert named["model"] == REAL, name
                assert "model.id" not in named, name
            assert named["model"] in presets, name
            if scale == "embedded" and named["method"] in methods:
                chosen[(named["method"], *named)] = name, row
    for name, row in chosen.values():
        assert run_of(settings(*row.overrides)).q, name


def test_mixed_precision_is_every_pair_and_says_what_else_it_runs() -> None:
    artifact = load_artifact("fig14")
    labels = {row.key: row.labels for row in artifact.rows("embedded")}
    labels = labels["gpt-neo-1.3b/mixed/q3_g128/q5_g2048"]
    assert (labels["Attention"], labels[OURS]) == ("q3 g128", "att:g=16 ffn:g=-1")
    rows = artifact.rows("paper")
    assert all(OURS not in row.labels for row in rows)
    mixed = [row for row in rows if "/mixed/" in row.key]
    assert len(mixed) == len({tuple(row.overrides) for row in mixed}) == 144
    assert sum("/uniform/" in row.key for row in rows) == 12


def test_a_model_nobody_can_have_is_a_stand_in_and_keeps_its_numbers() -> None:
    whole, part = load_artifact("lut-gemm-iclr2024/table5"), load_artifact("table6")
    assert not any(row.public for row in part.rows("paper"))
    assert all(row.public for row in load_artifact("table4").rows("paper"))
    assert "opt-175b/q4" not in part.numbers()
    assert part.numbers().items() <= whole.numbers().items()


def test_an_entry_without_overrides_at_a_scale_has_no_row_there() -> None:
    artifact = load_artifact("fig10")
    assert artifact.absent("embedded") == ["OPT-30B"]
    assert not any(row.first == "opt-30b" for row in artifact.rows("embedded"))
    models = [row.first for row in artifact.rows("paper")]
    assert models == [*["opt-6.7b"] * 7, *["opt-13b"] * 7, *["opt-30b"] * 7], "across blocks"


def test_at_scale_real_a_model_keeps_the_rows_of_its_claims() -> None:
    rows = load_artifact("mixed-2-4-16/table1").rows("real")
    run = [row.key for row in rows if not row.not_run]
    methods = ("fp16", "gptq", "ours", "ours_02", "tuned", "tuned_02")
    assert run == [f"llama-2-7b/{method}" for method in methods]
    others = {row.first for row in rows if row.not_run}
    assert {"llama-1-7b", "llama-2-7b", "chatglm3-6b"} <= others, "what is cited stays"
    assert load_artifact("nuqmm/table3").rows("real") == [], "a product is no model"


@pytest.mark.parametrize(("name", "place", "value", "message"), [
    ("table4", "published opt-30b fp16 ptb", None, "1 cells of the table have no published value"),
    ("table4", "published opt-30b q5_g32", {"ptb": 1.0}, "is not a cell"),
    ("fig12", "figure", {"x": "size", "y": "ppl", "series": []}, "figure draws 'size'"),
    ("fig12", "figure", None, "a claim about fronts needs a figure"),
    ("table4", "claims", [{"text": "x", "where": "page 3", "holds": ["fp16 > 1"]}], "neither Section, Appendix"),
    ("fig12", "axes", [{"a": {"labels": {}, "overrides": []}}], "either axes or blocks"),
])  # fmt: skip
def test_what_is_no_table_or_cannot_be_drawn_is_refused(name, place, value, message) -> None:
    data = yaml.safe_load(artifacts()[name].read_text())
    data.pop("shared", None)
    holder, (*keys, last) = data, place.split()
    for key in keys:
        holder = holder[key]
    holder[last] = value
    if value is None:
        del holder[last]
    with pytest.raises(ValueError, match=message):
        Artifact(name="x", **data)


PRODUCTS = [
    *(f"lut-gemm-v3/{name}" for name in ("table2", "table3", "table7", "fig8", "fig9")),
    *(f"lut-gemm-iclr2024/{name}" for name in ("table1", "table2", "fig4a", "fig4b")),
    *(f"nuqmm/{name}" for name in ("table3", "table4", "table5", "fig8", "fig9", "fig10")),
]


@pytest.mark.parametrize("name", PRODUCTS)
def test_rows_are_products_that_somebody_can_run_or_says_why_not(name: str) -> None:
    artifact = load_artifact(name)
    for scale, part in (("embedded", 4), ("small", 2), ("paper", 1)):
        for row, whole in zip(artifact.rows(scale), artifact.rows("paper"), strict=True):
            here, there = (dict(o.split("=", 1) for o in r.overrides) for r in (row, whole))
            assert here["model"] == "product"
            kernel = here.get("kernel", "auto")
            assert kernel in (*KERNELS, *ABSENT) or re.fullmatch(r"tensor_parallel_[248]", kernel)
            ids = (re.findall(r"\d+", values["model.id"]) for values in (here, there))
            assert all(part * int(s) == int(t) for s, t in zip(*ids, strict=True))


@pytest.mark.parametrize("name", PRODUCTS)
def test_times_and_energies_of_other_machines_are_not_compared(name: str) -> None:
    absolute = ("_us", "_w", "energy_mj", "_utilization")
    for column in load_artifact(name).columns.values():
        if column.published:
            assert column.absolute == column.metric.endswith(absolute), column.title
