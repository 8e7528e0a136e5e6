"""After the fact: embeddings of a model that stays as it is, made less alike by fit and transform."""

from unsmooth.posthoc.all_but_the_top import AllButTheTop
from unsmooth.posthoc.estimator import ESTIMATORS, Estimator, estimator, load
from unsmooth.posthoc.flow import Flow
from unsmooth.posthoc.whitening import Whitening

__all__ = ["ESTIMATORS", "AllButTheTop", "Estimator", "Flow", "Whitening", "estimator", "load"]
