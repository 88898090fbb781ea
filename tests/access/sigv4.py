"""Signatures of S3, version 4, by hand: to send what no client library sends."""

import datetime
import hashlib
import hmac
import os
import urllib.parse

REGION = "us-east-1"


def signed(method, path, body=b"", headers=None, query="", key=None, secret=None, when=None,
           payload=None, url=None):
    """The headers of a request that is signed by hand (SigV4), and its path."""
    key, secret = key or os.environ["S3_KEY"], secret or os.environ["S3_SECRET"]
    host = urllib.parse.urlsplit(url or os.environ["S3_URL"]).netloc
    when = when or datetime.datetime.now(datetime.timezone.utc)
    stamp, day = when.strftime("%Y%m%dT%H%M%SZ"), when.strftime("%Y%m%d")
    payload = payload or hashlib.sha256(body).hexdigest()
    names = {"host": host, "x-amz-date": stamp, "x-amz-content-sha256": payload}
    names.update({name.lower(): value for name, value in (headers or {}).items()})
    listed = ";".join(sorted(names))
    canonical = "\n".join(
        [method, path, query]
        + [f"{name}:{names[name]}" for name in sorted(names)]
        + ["", listed, payload]
    )
    scope = f"{day}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope,
                      hashlib.sha256(canonical.encode()).hexdigest()])
    mac = ("AWS4" + secret).encode()
    for part in [day, REGION, "s3", "aws4_request"]:
        mac = hmac.new(mac, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(mac, text.encode(), hashlib.sha256).hexdigest()
    names["authorization"] = (f"AWS4-HMAC-SHA256 Credential={key}/{scope}, "
                              f"SignedHeaders={listed}, Signature={signature}")
    return names
