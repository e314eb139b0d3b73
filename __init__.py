"""Furcate: programs that fork. A small language for many-call model programs, and the engine that runs them."""

from . import testing as testing
from .lang.backends.base import Model
from .lang.budget import Budget
from .lang.checks import Finding
from .lang.choice import Choice
from .lang.context import Context
from .lang.conversation import Chat
from .lang.errors import (
    BackendError,
    BranchError,
    BudgetExceeded,
    Cancelled,
    ContextBusy,
    ContextClosed,
    ContextOverflow,
    EngineClosed,
    EngineFailed,
    FurcateError,
    InvalidChoices,
    InvalidMark,
    InvalidRegex,
    ModelLoadError,
    ModelNotFound,
    NoChatTemplate,
    NoModel,
    NoSource,
    ProgramTimeout,
    TemplateRefused,
    Truncated,
    UnboundedGeneration,
    UnsatisfiableConstraint,
    UnsupportedByBackend,
    UnsupportedSchema,
    ValidationFailed,
)
from .lang.forking import parallel
from .lang.graph import Graph
from .lang.load import load, using
from .lang.operation import GenOptions, Mark, OpRecord
from .lang.program import Program, program
from .lang.run import Event, Failed, Results, Run
from .lang.stream import Stream
from .lang.turns import Message
from .lang.types import OutputType, grammar, json_schema, regex
from .lang.until import Until, first, majority, vote
from .runtime.metrics import Usage

__all__ = [
    "BackendError",
    "BranchError",
    "Budget",
    "BudgetExceeded",
    "Cancelled",
    "Chat",
    "Choice",
    "Context",
    "ContextBusy",
    "ContextClosed",
    "ContextOverflow",
    "EngineClosed",
    "EngineFailed",
    "Event",
    "Failed",
    "Finding",
    "FurcateError",
    "GenOptions",
    "Graph",
    "InvalidChoices",
    "InvalidMark",
    "InvalidRegex",
    "Mark",
    "Message",
    "Model",
    "ModelLoadError",
    "ModelNotFound",
    "NoChatTemplate",
    "NoModel",
    "NoSource",
    "OpRecord",
    "OutputType",
    "Program",
    "ProgramTimeout",
    "Results",
    "Run",
    "Stream",
    "TemplateRefused",
    "Truncated",
    "UnboundedGeneration",
    "UnsatisfiableConstraint",
    "UnsupportedByBackend",
    "UnsupportedSchema",
    "Until",
    "Usage",
    "ValidationFailed",
    "first",
    "grammar",
    "json_schema",
    "load",
    "majority",
    "parallel",
    "program",
    "regex",
    "testing",
    "using",
    "vote",
]
