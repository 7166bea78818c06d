"""The client's half of the contract, for programs that call the service.

The server makes one outcome of one key. Whether the client keeps to one key for one thing that its user did,
and knows when a repeat helps, is decided here: a key is minted once, before anything is sent, together with the
bytes of the body; both are sent again, unchanged, where a repeat helps, and nothing is where it does not.

    client = Client("http://127.0.0.1:8080", api_key)
    operation = client.begin(ChatRequest("kitchen", "Is it boiling?"))
    print(client.send(operation).answer.message.content)

Times are seconds. A client may be used by many threads at once.
"""

from ._answers import ChatAnswer, ChatMessage, Gap, ParseAnswer, RecordAnswer, Reply, Usage
from ._client import DEFAULT_SILENCE, DEFAULT_TIMEOUT, Client
from ._clock import Clock
from ._decide import Again, Answered, Done, Ending, Lost, Stop, TimedOut, decide, told_wait
from ._errors import ClientError, ConnectionLost, NotSent, OurSide, TimeoutPassed, YourInput
from ._journal import FolderJournal, Journal
from ._operation import ChatRequest, Operation, ParseRequest
from ._policy import Repeat, RetryPolicy
from ._problem import Problem
from ._stream import Completed, Delta, EventStream, Progress, Restarted, Started, StreamEvent
from ._transport import Broken, Elapsed, HttpTransport, Response, Transport
from ._version import __version__

__all__ = [
    "Again",
    "Answered",
    "Broken",
    "ChatAnswer",
    "ChatMessage",
    "ChatRequest",
    "Client",
    "ClientError",
    "Clock",
    "Completed",
    "ConnectionLost",
    "DEFAULT_SILENCE",
    "DEFAULT_TIMEOUT",
    "Delta",
    "Done",
    "Elapsed",
    "Ending",
    "EventStream",
    "FolderJournal",
    "Gap",
    "HttpTransport",
    "Journal",
    "Lost",
    "NotSent",
    "Operation",
    "OurSide",
    "ParseAnswer",
    "ParseRequest",
    "Problem",
    "Progress",
    "RecordAnswer",
    "Repeat",
    "Reply",
    "Response",
    "Restarted",
    "RetryPolicy",
    "Started",
    "Stop",
    "StreamEvent",
    "TimedOut",
    "TimeoutPassed",
    "Transport",
    "Usage",
    "YourInput",
    "__version__",
    "decide",
    "told_wait",
]
