"""Which learning rate and weight of the KL divergence does `branch_sums` train with?

Uniform runs of twelve rounds on seeds 100 to 102, which the study does not use. The choice: of the
settings whose valid rate is never below that before training, in the mean over the seeds, the one
that ends highest. It is made before the study is registered.
"""

import itertools
import runpy
from pathlib import Path

from experiments.study.variants import Study, Variant

_RATES = (5e-4, 2e-4, 1e-4)
_KL = (0.0, 0.02)

get_config = runpy.run_path(str(Path(__file__).with_name("study.py")))["get_config"]

STUDY = Study(
    question="With which learning rate and KL divergence does a uniform run not fall?",
    variants=tuple(
        Variant(
            f"rate-{rate:g}-kl-{kl:g}",
            f"rate {rate:g}, KL {kl:g}",
            {
                "engineer.designer": "fixed",
                "training.optimizer.learning_rate": rate,
                "training.objective.kl_coef": kl,
            },
        )
        for rate, kl in itertools.product(_RATES, _KL)
    ),
    reference=f"rate-{_RATES[0]:g}-kl-{_KL[0]:g}",
    seeds=(100, 101, 102),
)
