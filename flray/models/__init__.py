"""Networks as plain modules with a feature/head split. Adding one: its file, one line of the table in `config.py`."""

from flray.models.base import Classifier, count_parameters
from flray.models.model_config import MODELS, ModelConfig, build_model, model_options, starts_from

__all__ = ["MODELS", "Classifier", "ModelConfig", "build_model", "count_parameters", "model_options", "starts_from"]
