# What schemathesis has to be shown: how the body of a media type is made that it does not know, and that nobody waits
# here for what never comes.
import schemathesis
from hypothesis import strategies

schemathesis.openapi.media_type("application/x-tar", strategies.binary())


@schemathesis.hook
def map_query(context, query):
    wait = (query or {}).get("wait_ms")
    if isinstance(wait, int) and wait > 100:
        query["wait_ms"] = wait if wait > 60000 else 100
    return query
