"""The contract between a broker and those who use it, the client and the worker.

Redis and the in-process broker both fulfil it, so the same tools run over ``redis://`` and ``memory://``.
"""

from toolbus.broker.protocols.agent import AgentBroker, AgentListener
from toolbus.broker.protocols.chats import Chats, ChatWindow, Messenger
from toolbus.broker.protocols.confirmations import Confirmations
from toolbus.broker.protocols.conversations import ConversationInfo, Conversations, HeldConversation, StoredRecord
from toolbus.broker.protocols.creations import ClaimedCreation, Creation, CreationOverview, Creations, CreationStatus, Spent
from toolbus.broker.protocols.delivery import MOST_SNAPSHOT, NO_SNAPSHOT, Beginning, Delivery, Ending, Note, Outcome, Snapshot, session_of
from toolbus.broker.protocols.publish import Fate, Sender, Verdict
from toolbus.broker.protocols.registry import ALL_TOOLS, ItemChange, RefusedTool, ServiceRecord
from toolbus.broker.protocols.results import SessionResults
from toolbus.broker.protocols.routes import HostId, OutputLine, Renewed, Routes
from toolbus.broker.protocols.tallies import Tallies, Usage
from toolbus.broker.protocols.tasks import TaskFrames, TaskRecord, Tasks
from toolbus.broker.protocols.tokens import Tokens
from toolbus.broker.protocols.worker import SessionListener, WorkerBroker, WorkerBrokerOf, WorkerId, WorkerListener

__all__ = [
    "ALL_TOOLS",
    "MOST_SNAPSHOT",
    "NO_SNAPSHOT",
    "AgentBroker",
    "AgentListener",
    "Beginning",
    "ChatWindow",
    "Chats",
    "ClaimedCreation",
    "Confirmations",
    "ConversationInfo",
    "Conversations",
    "Creation",
    "CreationOverview",
    "CreationStatus",
    "Creations",
    "Delivery",
    "Ending",
    "Fate",
    "HeldConversation",
    "HostId",
    "ItemChange",
    "Messenger",
    "Note",
    "Outcome",
    "OutputLine",
    "RefusedTool",
    "Renewed",
    "Routes",
    "Sender",
    "ServiceRecord",
    "SessionListener",
    "SessionResults",
    "Snapshot",
    "Spent",
    "StoredRecord",
    "Tallies",
    "TaskFrames",
    "TaskRecord",
    "Tasks",
    "Tokens",
    "Usage",
    "Verdict",
    "WorkerBroker",
    "WorkerBrokerOf",
    "WorkerId",
    "WorkerListener",
    "session_of",
]
