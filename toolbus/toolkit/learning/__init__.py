"""Learn edge scores from the outcomes of calls: record, estimate, compare, keep, roll back.

``Recorder`` writes executions to a store, ``learn`` computes scores from them, ``Revisions`` keeps these, and ``evaluate``
measures whether they are better.
"""

from toolbus.toolkit.learning.evaluate import Evaluation, Options, evaluate
from toolbus.toolkit.learning.evidence import Edge, Episode, Parameters, Scores, episodes, load_scores
from toolbus.toolkit.learning.learn import Change, Learned, learn
from toolbus.toolkit.learning.recorder import Recorder
from toolbus.toolkit.learning.revisions import Revision, Revisions
from toolbus.toolkit.learning.stores import Execution, ExecutionStore, RecordError, copy, open_store

__all__ = [
    "Change",
    "Edge",
    "Episode",
    "Evaluation",
    "Execution",
    "ExecutionStore",
    "Learned",
    "Options",
    "Parameters",
    "RecordError",
    "Recorder",
    "Revision",
    "Revisions",
    "Scores",
    "copy",
    "episodes",
    "evaluate",
    "learn",
    "load_scores",
    "open_store",
]
