#!/usr/bin/env python3
"""Calls of WebDAV: webdav_checks.py URL KEY SECRET READER READER-SECRET."""
import base64
import http.client
import socket
import sys
import time
import urllib.parse

URL, KEY, SECRET, READER, READER_SECRET = sys.argv[1:]
HOST = urllib.parse.urlsplit(URL).netloc
PASSED = FAILED = 0


def check(text, good):
    global PASSED, FAILED
    PASSED, FAILED = PASSED + bool(good), FAILED + (not good)
    print(("ok   " if good else "FAIL ") + text, flush=True)


def basic(key, secret):
    return "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()


WRITER = {"Authorization": basic(KEY, SECRET)}
ONLY_READER = {"Authorization": basic(READER, READER_SECRET)}


class Answer:
    def __init__(self, answer):
        self.status, self.headers = answer.status, answer.headers
        try:
            self.body, self.is_whole = answer.read(), True
        except (http.client.IncompleteRead, ConnectionError):
            self.body, self.is_whole = b"", False


def call(method, path, body=None, who=WRITER, **headers):
    connection = http.client.HTTPConnection(HOST, timeout=60)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {**who, **headers})
    answer = Answer(connection.getresponse())
    connection.close()
    return answer


def status(*args, **kwargs):
    return call(*args, **kwargs).status


def raw(request):
    """Sends bytes, ends, and answers what comes."""
    with socket.create_connection(tuple(HOST.split(":")), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def names(path, **headers):
    answer = call("PROPFIND", path, Depth="1", **headers)
    text = answer.body.decode()
    return answer.status, [part.split("<")[0] for part in text.split("href>")[1::2]]


def access():
    answer = call("GET", "/", who={})
    check("no key: 401, and how to give one",
          answer.status == 401 and answer.headers["WWW-Authenticate"].startswith("Basic "))
    for who in [basic(KEY, SECRET + "x"), basic(KEY + "x", SECRET), basic(KEY, ""), "Basic %%",
                "Bearer x", basic("x" * 5000, "y")]:
        check(f"refused: {who[:20]}", status("PROPFIND", "/", who={"Authorization": who}) == 401)
    check("a key that only reads: a listing", status("PROPFIND", "/", who=ONLY_READER) == 207)
    for method in "PUT MKCOL DELETE MOVE COPY LOCK PROPPATCH PATCH REPORT".split():
        answer = status(method, "/x", who=ONLY_READER, Destination="/y")
        check(f"a key that only reads: {method}", answer == 403)
    answer = call("OPTIONS", "/")
    check("what is spoken", answer.status == 200 and "2" in answer.headers["DAV"])


def contents():
    check("a new file", status("PUT", "/file", b"one") == 201)
    first = call("GET", "/file")
    check("its bytes", first.body == b"one" and first.headers["ETag"])
    check("another content", status("PUT", "/file", b"two two") == 204)
    second = call("HEAD", "/file")
    check("another ETag", second.headers["ETag"] != first.headers["ETag"]
          and second.headers["Content-Length"] == "7")
    check("a range", (answer := call("GET", "/file", Range="bytes=4-5")).body == b"tw"
          and answer.status == 206)
    check("a range that is none", status("GET", "/file", Range="bytes=100-") == 416)
    check("If-None-Match: *", status("PUT", "/file", b"x", If_None_Match="*") == 412)
    check("If-Match of another content",
          status("PUT", "/file", b"x", If_Match=first.headers["ETag"]) == 412)
    check("If-Match of this one",
          status("PUT", "/file", b"3", If_Match=second.headers["ETag"]) == 204)
    check("no directory for it", status("PUT", "/none/file", b"x") == 409)
    check("a directory is no file", status("MKCOL", "/dir") == 201
          and status("PUT", "/dir", b"x") in (405, 409) and status("MKCOL", "/dir") == 405)
    large = bytes(range(256)) * 40000
    check("10 MB", status("PUT", "/dir/large", large) == 201
          and call("GET", "/dir/large").body == large)
    check("a part of it",
          status("PUT", "/dir/large", b"part", Content_Range="bytes 100-103/*") == 204
          and call("GET", "/dir/large", Range="bytes=99-104").body == b"\x63part\x68")
    check("a listing", names("/dir/") == (207, ["/dir/", "/dir/large"]))
    check("a whole tree at once is not told",
          status("PROPFIND", "/", Depth="infinity") in (403, 501))
    check("a page for browsers", b"large" in call("GET", "/dir/").body)


def atomicity():
    head = f"Host: {HOST}\r\nAuthorization: {basic(KEY, SECRET)}\r\n"
    status("PUT", "/kept", b"before")
    for name, had in [("kept", b"before"), ("never", None)]:
        raw(f"PUT /{name} HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\nhalf".encode())
        raw(f"PUT /{name} HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n"
            "4\r\nhalf\r\n".encode())
        raw(f"PUT /{name} HTTP/1.1\r\n{head}X-Expected-Entity-Length: 9\r\n"
            "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n\r\n".encode())
        answer = call("GET", f"/{name}")
        check(f"half a body leaves {name} as it was",
              answer.status == 404 if had is None else answer.body == had)
    status("PUT", "/a", b"a")
    status("PUT", "/b", b"b")
    check("MOVE onto a file, not asked to replace",
          status("MOVE", "/a", Destination=f"{URL}/b", Overwrite="F") == 412)
    check("MOVE onto a file", status("MOVE", "/a", Destination=f"{URL}/b") == 204
          and call("GET", "/b").body == b"a" and status("GET", "/a") == 404)
    check("COPY onto a file", status("COPY", "/kept", Destination=f"{URL}/b") == 204
          and call("GET", "/b").body == b"before")
    check("MOVE of what is not there leaves the target",
          status("MOVE", "/none", Destination=f"{URL}/b") == 404
          and call("GET", "/b").body == b"before")
    status("MKCOL", "/from")
    status("PUT", "/from/x", b"x")
    check("COPY of a directory onto a file",
          status("COPY", "/from", Destination=f"{URL}/b") in (201, 204)
          and call("GET", "/b/x").body == b"x")
    status("PUT", "/c", b"c")
    check("MOVE of a directory onto a file",
          status("MOVE", "/from", Destination=f"{URL}/c") in (201, 204)
          and call("GET", "/c/x").body == b"x" and status("GET", "/from/x") == 404)
    check("MOVE to another server", status("MOVE", "/c", Destination="http://elsewhere/x") in (400, 502)
          or status("GET", "/c/x") == 404 and status("MOVE", "/x", Destination=f"{URL}/c") == 201)


LOCK = ('<?xml version="1.0"?><lockinfo xmlns="DAV:"><lockscope><{}/></lockscope><locktype><write/>'
        "</locktype><owner>tests</owner></lockinfo>")


def lock(path, scope="exclusive", **headers):
    answer = call("LOCK", path, LOCK.format(scope), **headers)
    return answer.status, (answer.headers["Lock-Token"] or "").strip("<>")


def locks():
    status("PUT", "/locked", b"1")
    got, token = lock("/locked", Timeout="Second-600")
    check("a lock", got == 200 and token.startswith("opaquelocktoken:"))
    check("a second lock", lock("/locked")[0] == 423)
    check("others do not write", status("PUT", "/locked", b"2") == 423
          and status("DELETE", "/locked") == 423
          and status("MOVE", "/b", Destination=f"{URL}/locked") == 423)
    check("the owner writes", status("PUT", "/locked", b"3", If=f"(<{token}>)") == 204)
    check("refreshed", status("LOCK", "/locked", If=f"(<{token}>)", Timeout="Second-60") == 200)
    check("unlocked", status("UNLOCK", "/locked", Lock_Token=f"<{token}>") == 204
          and status("PUT", "/locked", b"4") == 204)
    check("unlocked twice", status("UNLOCK", "/locked", Lock_Token=f"<{token}>") in (409, 412))
    got, token = lock("/new-by-lock")
    check("a lock makes a file", got == 201 and call("GET", "/new-by-lock").body == b"")
    status("UNLOCK", "/new-by-lock", Lock_Token=f"<{token}>")
    lock("/locked", Timeout="Second-1")
    deadline = time.monotonic() + 30
    while status("PUT", "/locked", b"5") == 423 and time.monotonic() < deadline:
        time.sleep(0.2)
    check("a lock ends when its time is over", call("GET", "/locked").body == b"5")
    many = [lock(f"/shared-{n % 2}", "shared")[0] for n in range(4)]
    check("shared locks", many == [201, 201, 200, 200] and lock("/shared-0")[0] == 423)


def patch(path, xml):
    return call("PROPPATCH", path, f'<propertyupdate xmlns="DAV:">{xml}</propertyupdate>')


def hostile():
    for path in ["/../etc/passwd", "/dir/../../etc", "/%2e%2e/etc", "/dir/%2e%2e/%2e%2e/etc",
                 "/x%00y", "/dir//../../x", "//../x", "/" + "n" * 256, "/" + "d/" * 3000,
                 "/.kestrel-s3/x",
                 "/.trash/x", "*", "/dir/..%2f..%2fetc/passwd", "/%ff%fe", "/a%", "/dir/."]:
        got = [status("GET", path), status("PUT", path, b"x")]
        check(f"{path[:30]}: {got}", got[0] in (301, 302, 400, 403, 404, 405, 414, 502)
              and (got[1] >= 400 or path == "/%ff%fe"))
    status("DELETE", "/%ff%fe")
    for destination in ["/../x", "http://[", "", "/%2e%2e/x", "/.kestrel-s3/x", "/dir/large/x"]:
        got = status("COPY", "/kept", Destination=destination)
        check(f"Destination {destination}: {got}", 400 <= got < 600 and got != 500)
    check("a directory into itself", status("MOVE", "/dir/", Destination=f"{URL}/dir/x/") >= 400
          and names("/dir/")[0] == 207)
    deep = "<a>" * 20000
    bomb = ('<!DOCTYPE x [<!ENTITY a "' + "b" * 1000 + '">' + "".join(
        f'<!ENTITY {chr(98 + n)} "&{chr(97 + n)};&{chr(97 + n)};">' for n in range(20))
        + ']><propfind xmlns="DAV:"><prop><x>&u;</x></prop></propfind>')
    for name, body in [("nothing", b"x"), ("half", b"<propfind"), ("deep", deep), ("a bomb", bomb),
                       ("much", b"<a>" + b" " * 100000), ("no text", bytes(range(256))),
                       ("hidden depth", "<a b='/>'>" * 6000), ("another document", b"<x/>")]:
        for method in ["PROPFIND", "PROPPATCH", "LOCK"]:
            got = status(method, "/kept", body)
            check(f"{method} with {name}: {got}", 400 <= got < 500 or got == 207)
    check("it is still there", status("PROPFIND", "/") == 207)
    set_it = '<set><prop><x:p xmlns:x="urn:x">v</x:p></prop></set>'
    check("a property", patch("/kept", set_it).status == 207)
    ask = '<propfind xmlns="DAV:"><prop><x:p xmlns:x="urn:x"/></prop></propfind>'
    check("its value", b">v<" in call("PROPFIND", "/kept", ask, Depth="0").body)
    status("PUT", "/kept", b"changed")
    check("another content keeps it", b">v<" in call("PROPFIND", "/kept", ask, Depth="0").body)
    for n in range(3):
        big = f'<set><prop><x:big{n} xmlns:x="urn:x">{"v" * 30000}</x:big{n}></prop></set>'
        got = patch("/kept", big)
    check("more properties than fit", got.status in (207, 507) and b"200 OK" not in got.body)
    check("the others stay", b">v<" in call("PROPFIND", "/kept", ask, Depth="0").body)
    check("an unknown method", status("BREW", "/kept") in (405, 501))


for part in [access, contents, atomicity, locks, hostile]:
    print(f"-- {part.__name__}")
    part()
print(f"{PASSED} passed, {FAILED} failed")
sys.exit(FAILED > 0)
