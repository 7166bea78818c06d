"""What a schema cannot say, said to those requests that are meant to be good ones."""

import itertools
import json
import uuid

import schemathesis
from schemathesis import GenerationMode

number = itertools.count()
PLAY = b"MARA: Is it boiling?\nTOM: Not yet.\n"


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE:
        return
    body = case.body if isinstance(case.body, dict) else {}
    query = case.query if isinstance(case.query, dict) else {}
    # Names are the configuration's.
    for options in (body, query):
        if isinstance(options.get("model"), str):
            options["model"] = "default"
        if isinstance(options.get("profile"), str):
            options["profile"] = "script"
    # No jsonb holds U+0000.
    if "\\u0000" in json.dumps(body.get("metadata")):
        body["metadata"] = None
    if "metadata" in query:
        query["metadata"] = "{}"
    # Mostly a key of its own: the few that are made up would all be somebody else's soon.
    turn = next(number)
    if "Idempotency-Key" in case.headers and turn % 3:
        case.headers["Idempotency-Key"] = str(uuid.uuid5(uuid.NAMESPACE_OID, str(turn)))
    if case.operation.path == "/v1/parse":
        parse(case, body, query, turn)
    if case.operation.path == "/v1/usage":
        # By their days: of the two forms one is longer.
        if str(query.get("from"))[:10] >= str(query.get("to"))[:10]:
            query["from"], query["to"] = "2026-08-01", "2026-09-01"
    # What was touched is judged anew, files and JSON in a query by their wire form as bad ones. They are
    # as good as they were.
    meta = case.meta
    meta.generation.mode = GenerationMode.POSITIVE
    for component in meta.components.values():
        component.mode = GenerationMode.POSITIVE


def parse(case, body, query, turn):
    is_json = case.media_type == "application/json"
    if is_json and body.get("text") is not None:
        body.pop("capture_id", None)
    elif is_json and body.get("capture_id") is None:
        body["text"] = PLAY.decode()
    # Options stand in the body where there is a place for them.
    if is_json or case.media_type == "multipart/form-data":
        query.clear()
    # Bytes at random are no file; now and then there is one.
    if turn % 2:
        if case.media_type == "multipart/form-data":
            body["file"] = PLAY
        elif not is_json:
            case.body = PLAY.decode() if case.media_type == "text/plain" else PLAY
