"""Networks as plain modules with a feature/head split. A new one needs a file and a line in `model_config.MODELS`."""

from typing import TYPE_CHECKING

from flray.core.schema.lazy import lazy

if TYPE_CHECKING:
    from flray.models.base import Classifier as Classifier, count_parameters as count_parameters
    from flray.models.build import build_model as build_model, starts_from as starts_from
    from flray.models.model_config import MODELS as MODELS, ModelConfig as ModelConfig, model_options as model_options

_HOME = {
    "Classifier": "flray.models.base",
    "MODELS": "flray.models.model_config",
    "ModelConfig": "flray.models.model_config",
    "build_model": "flray.models.build",
    "count_parameters": "flray.models.base",
    "model_options": "flray.models.model_config",
    "starts_from": "flray.models.build",
}
__all__ = ["MODELS", "Classifier", "ModelConfig", "build_model", "count_parameters", "model_options", "starts_from"]

__getattr__ = lazy(__name__, _HOME)
