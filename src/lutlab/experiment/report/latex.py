r"""The report as LaTeX with booktabs: compiles alone with pdflatex; other documents can `\input` it."""

from __future__ import annotations

from lutlab.experiment.report.layout import Grid, Layout, break_lines

PACKAGES = ("booktabs", "amssymb", "graphicx")
HEAD_WIDTH = 14  # characters in a line of a head
SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # after a line break, `[` and `*` would be its arguments
    "*": "{*}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "'": r"{'}",
    "`": r"\textasciigrave{}",
    **{char: f"\\{char}" for char in "&%$#_"},
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "’": "'",
    "“": "``",
    "”": "''",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "§": r"\S{}",
    "·": r"$\cdot$",
    "✓": r"$\checkmark$",
    "✗": r"$\times$",
    "=": "$=$",
    **{char: f"$\\{name}$" for char, name in {
        "≈": "approx", "≠": "neq", "≤": "leq", "≥": "geq", "×": "times", "±": "pm", "→": "rightarrow",
        "←": "leftarrow", "↑": "uparrow", "↓": "downarrow", "∞": "infty", "µ": "mu", "μ": "mu",
        "α": "alpha", "β": "beta", "σ": "sigma", "Δ": "Delta", "°": "circ", "−": "mbox{-}",
    }.items()},
    **{char: rf"\textsuperscript{{{i}}}" for i, char in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}  # fmt: skip


def escape(text: str) -> str:
    r"""Text that pdflatex prints as it is; a character it has no glyph for becomes its code point.

    >>> escape("50% of opt_125m")
    '50\\% of opt\\_125m'
    """
    return "".join(
        SPECIAL.get(char, char if char.isascii() else _other(char))
        for char in " ".join(text.split())
    )


def _other(char: str) -> str:
    return char if char in "ÄÖÜäöüßÀÁÂÇÈÉÊÑàáâãçèéêëíîïñóôõøúûý" else f"{{[}}U+{ord(char):04X}]"


def render(layout: Layout) -> str:
    """The table, its legend, the claims and notes."""
    parts = [_preamble(layout)]
    if layout.main.heads:
        paper = f" Paper: {layout.paper}." if layout.paper else ""
        caption = f"{layout.title}.{paper} Ours: {layout.measured}."
        if layout.stand_ins:
            caption += f" Stand-ins: {'; '.join(layout.stand_ins)}."
        lines = tuple(filter(None, (layout.left_out, *layout.legend, *layout.footnotes)))
        parts.append(_float(layout, layout.main, caption, lines, pairs=True))
    if layout.reference.heads:
        caption = f"{layout.title}: published, not measured here."
        parts.append(_float(layout, layout.reference, caption, layout.reasons, pairs=False))
    for heading, claims in layout.claims:
        items = [
            f"{f'{c.paper} · {c.ours} {c.instances()}'.rstrip()}. {c.text} ({c.where})"
            for c in claims
        ]
        parts.append(_itemize(heading, items))
    if layout.notes:
        parts.append(_itemize("Notes", layout.notes))
    if layout.origins:
        parts.append(_itemize("Where the measured numbers come from", layout.origins))
    parts.append("\\ifdefined\\lutlabalone\\expandafter\\enddocument\\fi")
    return "\n\n".join(parts) + "\n"


def _preamble(layout: Layout) -> str:
    r"""`\@nodocument` is \relax inside a document only: outside one, this file brings its own."""
    packages = ",".join(PACKAGES)
    return "\n".join(
        (
            f"% {_comment(layout.artifact)}, rendered by: {_comment(layout.command)}",
            f"% Compiles alone; or \\input it in a document that uses the packages {packages}.",
            "\\expandafter\\ifx\\csname @nodocument\\endcsname\\relax\\else",
            "  \\def\\lutlabalone{}",
            "  \\documentclass{article}",
            "  \\usepackage[utf8]{inputenc}",
            f"  \\usepackage[margin=2cm]{{geometry}}\\usepackage{{{packages}}}",
            "  \\begin{document}",
            "\\fi",
        )
    )


def _comment(text: str) -> str:
    return " ".join(text.split())


def _float(layout: Layout, grid: Grid, caption: str, below: tuple[str, ...], pairs: bool) -> str:
    first = 1 if layout.headed else 0
    with_model = pairs and layout.show_model and not layout.headed
    axes = [*layout.axes[first:], *(["ours on"] if with_model else [])]
    spans = [len(head.halves(pairs)) for head in grid.heads]
    columns = "l" * len(axes) + "r" * sum(spans)
    body = []
    for block in grid.blocks:
        if block.heading:
            ours = (
                f"\\quad ours: {escape(block.measured_on)}" if pairs and block.measured_on else ""
            )
            heading = f"\\textbf{{{escape(block.heading)}}}{ours}"
            body += ["\\midrule", f"\\multicolumn{{{len(columns)}}}{{l}}{{{heading}}} \\\\"]
        body += ["\\midrule"]
        for line in block.lines:
            labels = [*line.labels[first:], *([line.model] if with_model else [])]
            entries = zip(grid.heads, line.entries, strict=True)
            cells = [text for head, entry in entries for text in entry.halves(head, pairs)]
            body.append(_row([*labels, *cells]))
    return "\n".join(
        (
            "\\begin{table}[tbp]",
            f"\\centering\\small\\setlength{{\\tabcolsep}}{{4pt}}\\setlength{{\\belowcaptionskip}}{{6pt}}\\caption{{{escape(caption)}}}",
            "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            *_heads(axes, grid, spans, pairs),
            *body,
            "\\bottomrule",
            "\\end{tabular}}\\par\\smallskip",
            *(f"\n{{\\raggedright\\footnotesize {escape(line)}\\par}}" for line in below),
            "\\end{table}",
        )
    )


def _heads(axes: list[str], grid: Grid, spans: list[int], pairs: bool) -> list[str]:
    """Titles over their halves, rules below the titles of pairs, then what each half holds."""
    titles = [
        f"\\multicolumn{{{span}}}{{c}}{{{_broken(head.name, 'c')}}}"
        for head, span in zip(grid.heads, spans, strict=True)
    ]
    rules, at = [], len(axes) + 1
    for span in spans:
        rules.append(f"\\cmidrule(lr){{{at}-{at + span - 1}}}")
        at += span
    halves = [half for head in grid.heads for half in head.halves(pairs)]
    return [
        " & ".join([*[""] * len(axes), *titles]) + " \\\\",
        "".join(rules),
        " & ".join([*map(escape, axes), *(_broken(half, "r") for half in halves)]) + " \\\\",
    ]


def _broken(head: str, align: str) -> str:
    """A head on as many lines as it needs to be no wider than its column of numbers."""
    lines = [escape(line) for line in break_lines(head, HEAD_WIDTH)]
    stacked = " \\\\ ".join(lines)
    return stacked if len(lines) == 1 else f"\\shortstack[{align}]{{{stacked}}}"


def _row(cells: list[str]) -> str:
    return " & ".join(escape(cell) for cell in cells) + " \\\\"


def _itemize(title: str, lines: tuple[str, ...] | list[str]) -> str:
    items = "\n".join(f"\\item {escape(line)}" for line in lines)
    return f"\\paragraph{{{title}}}\n\\begin{{itemize}}\n{items}\n\\end{{itemize}}"
