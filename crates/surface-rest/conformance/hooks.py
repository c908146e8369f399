# What schemathesis has to be shown: how the body of a media type is made that it does not know.
import schemathesis
from hypothesis import strategies

schemathesis.openapi.media_type("application/x-tar", strategies.binary())
