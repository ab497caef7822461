"""Tools of this repository, run at its top as `python -m tools.<name>`; an installed lutlab does not have them.

publish, render, gallery     results/published: measured, rendered, shown in the documentation
fit_latency                  the constants of the predictor, from latencies that papers print
embedded                     training of the small models that ship with lutlab
lock, golden                 versions of components against their sources and golden cells (CONTRIBUTING.md)
"""
