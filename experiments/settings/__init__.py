"""The options of a run: what they are, how files and flags set them, and their page."""

from experiments.settings.options import DESIGNERS as DESIGNERS
from experiments.settings.options import TINY_MODEL as TINY_MODEL
from experiments.settings.options import CheckpointSettings as CheckpointSettings
from experiments.settings.options import EngineerSettings as EngineerSettings
from experiments.settings.options import EngineerTraining as EngineerTraining
from experiments.settings.options import EnvironmentSettings as EnvironmentSettings
from experiments.settings.options import LogSettings as LogSettings
from experiments.settings.options import LoopSettings as LoopSettings
from experiments.settings.options import MeshSettings as MeshSettings
from experiments.settings.options import ModelSettings as ModelSettings
from experiments.settings.options import Settings as Settings
from experiments.settings.options import ValidationSettings as ValidationSettings
from experiments.settings.parse import RENAMED as RENAMED
from experiments.settings.parse import check_field as check_field
from experiments.settings.parse import check_known as check_known
from experiments.settings.parse import default_config as default_config
from experiments.settings.parse import family_of as family_of
from experiments.settings.parse import from_config as from_config
from experiments.settings.parse import of_run as of_run
