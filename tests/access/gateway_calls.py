#!/usr/bin/env python3
"""The same calls on any S3 server, and what it answers, a line for each: to compare the gateway
with another server. Dates and numbers of uploads are left out.

    gateway_calls.py BUCKET >answers
"""

import base64
import hashlib
import json
import sys

from botocore.exceptions import ClientError

from s3client import client

PART = 5 << 20
DROPPED = {"ResponseMetadata", "LastModified", "Body", "UploadId", "Owner", "Initiator",
           "Initiated", "VersionId", "StorageClass", "NextContinuationToken", "ContinuationToken",
           "ServerSideEncryption", "CreationDate", "Location", "AcceptRanges", "ChecksumType",
           "ChecksumAlgorithm", "EncodingType", "RequestCharged", "HostId", "BucketKeyEnabled",
           "BucketArn", "AccessPointAlias"}


def plain(value):
    """An answer without what differs from run to run."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()
                if name not in DROPPED and part not in ("", None, [], {})}
    if isinstance(value, list):
        parts = [plain(part) for part in value]
        # Of tags the order says nothing.
        is_tags = parts and all(isinstance(part, dict) and "Value" in part for part in parts)
        return sorted(parts, key=lambda part: part["Key"]) if is_tags else parts
    return value if isinstance(value, (int, str, bool, float)) else str(value)


class Calls:
    """Makes calls and writes down what came."""

    def __init__(self, bucket):
        self.s3 = client()
        self.bucket = bucket

    def call(self, name, operation, **arguments):
        try:
            answer = getattr(self.s3, operation)(**arguments)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            print(f"{name}\t{status} {error.response['Error']['Code']}")
            return {}
        told = plain(answer)
        if operation == "put_object":
            told.pop("Size", None)  # S3 tells it only of what was appended to
        body = answer["Body"].read() if operation == "get_object" else None
        if body is not None:
            told["body"] = hashlib.md5(body).hexdigest()
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        print(f"{name}\t{status} {json.dumps(told, sort_keys=True)}")
        return answer

    def on(self, name, operation, **arguments):
        return self.call(name, operation, Bucket=self.bucket, **arguments)


def objects(calls):
    on = calls.on
    on("put", "put_object", Key="a", Body=b"hello")
    on("get", "get_object", Key="a")
    on("head", "head_object", Key="a")
    on("put again", "put_object", Key="a", Body=b"hello again")
    on("get again", "get_object", Key="a")
    on("put nothing", "put_object", Key="empty", Body=b"")
    on("get nothing", "get_object", Key="empty")
    on("put deep", "put_object", Key="d/e/f/g", Body=b"x" * 100_000)
    on("get deep", "get_object", Key="d/e/f/g")
    on("get a prefix", "get_object", Key="d/e")
    on("head a prefix", "head_object", Key="d/e")
    on("get none", "get_object", Key="none")
    on("get below an object", "get_object", Key="a/b")
    on("head none", "head_object", Key="none")
    on("delete none", "delete_object", Key="none")
    on("strange names", "put_object", Key="ü +%/&=?#'\"<>~*", Body=b"1")
    on("get strange", "get_object", Key="ü +%/&=?#'\"<>~*")
    on("list strange", "list_objects_v2", Prefix="ü")
    on("metadata", "put_object", Key="m", Body=b"m", ContentType="text/x-a",
       ContentEncoding="gzip", ContentLanguage="de", CacheControl="no-cache",
       ContentDisposition="attachment", Metadata={"Color": "Red", "b-c": "d e"})
    on("get metadata", "get_object", Key="m")
    on("get with other headers", "get_object", Key="m", ResponseContentType="text/y",
       ResponseCacheControl="max-age=1")
    on("too much metadata", "put_object", Key="much", Body=b"", Metadata={"a": "b" * 3000})
    on("md5 good", "put_object", Key="md5", Body=b"abc",
       ContentMD5=base64.b64encode(hashlib.md5(b"abc").digest()).decode())
    on("md5 bad", "put_object", Key="md5bad", Body=b"abc",
       ContentMD5=base64.b64encode(hashlib.md5(b"abd").digest()).decode())
    on("md5 none", "put_object", Key="md5none", Body=b"abc", ContentMD5="abc")
    for algorithm in ["CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"]:
        try:
            on(f"checksum {algorithm}", "put_object", Key=f"sum/{algorithm}", Body=b"sum",
               ChecksumAlgorithm=algorithm)
        except Exception as error:  # without the library of the algorithm
            print(f"checksum {algorithm}\tnot made: {type(error).__name__}")
            continue
        on(f"checksum {algorithm} told", "head_object", Key=f"sum/{algorithm}",
           ChecksumMode="ENABLED")
    on("checksum bad", "put_object", Key="sum/bad", Body=b"sum", ChecksumCRC32="AAAAAA==")
    on("checksum bad left nothing", "head_object", Key="sum/bad")


def ranges(calls):
    on = calls.on
    on("put", "put_object", Key="r", Body=bytes(range(100)))
    for text in ["0-0", "0-", "10-19", "99-", "99-200", "-1", "-100", "-1000", "0-99"]:
        on(f"range {text}", "get_object", Key="r", Range=f"bytes={text}")
    for text in ["100-", "200-300", "-0"]:
        on(f"no such range {text}", "get_object", Key="r", Range=f"bytes={text}")
    on("range in head", "head_object", Key="r", Range="bytes=5-9")


def conditions(calls):
    on = calls.on
    tag = on("put", "put_object", Key="c", Body=b"1")["ETag"]
    other = '"00000000000000000000000000000000"'
    on("get if match", "get_object", Key="c", IfMatch=tag)
    on("get if match other", "get_object", Key="c", IfMatch=other)
    on("get if none match", "get_object", Key="c", IfNoneMatch=tag)
    on("get if none match other", "get_object", Key="c", IfNoneMatch=other)
    old, new = "2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
    on("get if modified since old", "get_object", Key="c", IfModifiedSince=old)
    on("get if unmodified since old", "get_object", Key="c", IfUnmodifiedSince=old)
    on("get if unmodified since new", "get_object", Key="c", IfUnmodifiedSince=new)
    on("head if match other", "head_object", Key="c", IfMatch=other)
    on("head if none match", "head_object", Key="c", IfNoneMatch=tag)
    on("put if none", "put_object", Key="c", Body=b"2", IfNoneMatch="*")
    on("put if none, new", "put_object", Key="c2", Body=b"2", IfNoneMatch="*")
    on("put if match other", "put_object", Key="c", Body=b"3", IfMatch=other)
    on("get after refused", "get_object", Key="c")
    on("put if match", "put_object", Key="c", Body=b"4", IfMatch=tag)
    on("put if match, none there", "put_object", Key="c3", Body=b"4", IfMatch=tag)
    on("get after match", "get_object", Key="c")


def listings(calls):
    on = calls.on
    keys = ["a", "a-b", "a.txt", "a/x", "a/y/z", "a0", "b/", "b/c", "z", "ä/1", "A"]
    for key in keys:
        # A path is an object or a directory: a/ and not a.
        if key != "a":
            on(f"put {key}", "put_object", Key=f"l/{key}", Body=b"" if key.endswith("/") else b"1")
    on("all", "list_objects_v2", Prefix="l/")
    on("all v1", "list_objects", Prefix="l/")
    on("delimiter", "list_objects_v2", Prefix="l/", Delimiter="/")
    on("delimiter v1", "list_objects", Prefix="l/", Delimiter="/")
    on("prefix in a name", "list_objects_v2", Prefix="l/a", Delimiter="/")
    on("prefix of none", "list_objects_v2", Prefix="l/nothing")
    on("prefix through an object", "list_objects_v2", Prefix="l/z/")
    on("start after", "list_objects_v2", Prefix="l/", StartAfter="l/a-b")
    on("start in a prefix", "list_objects_v2", Prefix="l/", StartAfter="l/a/x", Delimiter="/")
    on("marker", "list_objects", Prefix="l/", Marker="l/a/", Delimiter="/")
    on("no keys", "list_objects_v2", Prefix="l/", MaxKeys=0)
    on("owner", "list_objects_v2", Prefix="l/a", FetchOwner=True)
    for size in [1, 2, 3]:
        for delimiter in [None, "/"]:
            found, more = [], {"Delimiter": delimiter} if delimiter else {}
            while True:
                page = calls.s3.list_objects_v2(Bucket=calls.bucket, Prefix="l/", MaxKeys=size,
                                                **more)
                found.append([one["Key"] for one in page.get("Contents", [])]
                             + [one["Prefix"] for one in page.get("CommonPrefixes", [])])
                if not page["IsTruncated"]:
                    break
                more["ContinuationToken"] = page["NextContinuationToken"]
            print(f"pages of {size} {delimiter}\t{json.dumps(found)}")
            found, more = [], {"Delimiter": delimiter} if delimiter else {}
            while True:
                page = calls.s3.list_objects(Bucket=calls.bucket, Prefix="l/", MaxKeys=size, **more)
                names = [one["Key"] for one in page.get("Contents", [])]
                prefixes = [one["Prefix"] for one in page.get("CommonPrefixes", [])]
                found.append(names + prefixes)
                if not page["IsTruncated"]:
                    break
                more["Marker"] = page.get("NextMarker") or names[-1]
            print(f"pages v1 of {size} {delimiter}\t{json.dumps(found)}")
    on("bad token", "list_objects_v2", ContinuationToken="!")
    on("get a directory", "get_object", Key="l/b/")
    on("directory with bytes", "put_object", Key="l/q/", Body=b"1")
    on("object over a directory", "put_object", Key="l/a", Body=b"1")
    on("object below an object", "put_object", Key="l/z/below", Body=b"1")
    on("delete a directory", "delete_object", Key="l/b/")
    on("its keys stay", "list_objects_v2", Prefix="l/b/")
    on("delete an object in a directory", "delete_object", Key="l/b/c")
    on("nothing stays", "list_objects_v2", Prefix="l/b", Delimiter="/")
    on("delete several", "delete_objects", Delete={
        "Objects": [{"Key": f"l/{key}"} for key in ["a-b", "none", "a/x", "a/y/z"]]})
    on("delete quietly", "delete_objects", Delete={"Objects": [{"Key": "l/z"}], "Quiet": True})
    on("what is left", "list_objects_v2", Prefix="l/")


def tags(calls):
    on = calls.on
    tag = lambda *pairs: {"TagSet": [{"Key": key, "Value": value} for key, value in pairs]}
    on("put with tags", "put_object", Key="t", Body=b"1", Tagging="a=1&b=2%203")
    on("get", "get_object_tagging", Key="t")
    on("count", "get_object", Key="t")
    on("put others", "put_object_tagging", Key="t", Tagging=tag(("c", "d")))
    on("get others", "get_object_tagging", Key="t")
    on("too many", "put_object_tagging", Key="t",
       Tagging=tag(*((f"k{number}", "v") for number in range(11))))
    on("twice", "put_object_tagging", Key="t", Tagging=tag(("a", "1"), ("a", "2")))
    on("delete", "delete_object_tagging", Key="t")
    on("get none", "get_object_tagging", Key="t")
    on("of none", "get_object_tagging", Key="none")


def copies(calls):
    on = calls.on
    source = lambda key: {"Bucket": calls.bucket, "Key": key}
    tag = on("put", "put_object", Key="src", Body=b"s" * 300_000, ContentType="text/s",
             Metadata={"a": "b"}, Tagging="t=1")["ETag"]
    on("copy", "copy_object", Key="dst/copy", CopySource=source("src"))
    on("get", "get_object", Key="dst/copy")
    on("tags", "get_object_tagging", Key="dst/copy")
    on("replace", "copy_object", Key="dst/new", CopySource=source("src"), ContentType="text/n",
       Metadata={"c": "d"}, MetadataDirective="REPLACE")
    on("get replaced", "get_object", Key="dst/new")
    on("to itself", "copy_object", Key="src", CopySource=source("src"))
    on("to itself, other metadata", "copy_object", Key="src", CopySource=source("src"),
       Metadata={"e": "f"}, MetadataDirective="REPLACE")
    on("head itself", "head_object", Key="src")
    on("of none", "copy_object", Key="x", CopySource=source("none"))
    on("if match", "copy_object", Key="x", CopySource=source("src"), CopySourceIfMatch=tag)
    on("if none match", "copy_object", Key="x", CopySource=source("src"),
       CopySourceIfNoneMatch=tag)
    on("of no bucket", "copy_object", Key="x", CopySource={"Bucket": "nobucket", "Key": "a"})


def parts(calls):
    on = calls.on

    def part(key, upload, number, body):
        tag = on(f"part {number}", "upload_part", Key=key, UploadId=upload, PartNumber=number,
                 Body=body).get("ETag")
        return {"PartNumber": number, "ETag": tag}

    big = [bytes([number]) * PART for number in range(2)]
    upload = on("create", "create_multipart_upload", Key="p", ContentType="text/p",
                Metadata={"a": "b"}, Tagging="t=1")["UploadId"]
    made = [part("p", upload, 1, big[0]), part("p", upload, 2, big[1]), part("p", upload, 7, b"t")]
    on("nothing is there yet", "head_object", Key="p")
    on("parts", "list_parts", Key="p", UploadId=upload)
    on("parts by pages", "list_parts", Key="p", UploadId=upload, MaxParts=1, PartNumberMarker=1)
    on("uploads", "list_multipart_uploads")
    on("complete", "complete_multipart_upload", Key="p", UploadId=upload,
       MultipartUpload={"Parts": made})
    on("get", "get_object", Key="p")
    on("tags", "get_object_tagging", Key="p")
    on("range over a seam", "get_object", Key="p", Range=f"bytes={PART - 3}-{PART + 2}")
    on("no upload", "list_parts", Key="p", UploadId=upload)
    on("no uploads", "list_multipart_uploads")
    upload = on("create again", "create_multipart_upload", Key="q")["UploadId"]
    small = [part("q", upload, 1, b"small"), part("q", upload, 2, b"small")]
    on("too small", "complete_multipart_upload", Key="q", UploadId=upload,
       MultipartUpload={"Parts": small})
    on("other order", "complete_multipart_upload", Key="q", UploadId=upload,
       MultipartUpload={"Parts": small[::-1]})
    on("other part", "complete_multipart_upload", Key="q", UploadId=upload,
       MultipartUpload={"Parts": [{"PartNumber": 3, "ETag": small[0]["ETag"]}]})
    on("other etag", "complete_multipart_upload", Key="q", UploadId=upload,
       MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": '"0123"'}]})
    on("one of two", "complete_multipart_upload", Key="q", UploadId=upload,
       MultipartUpload={"Parts": small[1:]})
    on("get small", "get_object", Key="q")
    upload = on("create, abort", "create_multipart_upload", Key="w")["UploadId"]
    part("w", upload, 1, b"1")
    on("abort", "abort_multipart_upload", Key="w", UploadId=upload)
    on("part after abort", "upload_part", Key="w", UploadId=upload, PartNumber=1, Body=b"1")
    on("abort again", "abort_multipart_upload", Key="w", UploadId=upload)
    upload = on("create for copies", "create_multipart_upload", Key="pc")["UploadId"]
    source = {"Bucket": calls.bucket, "Key": "p"}
    tag = calls.s3.upload_part_copy(Bucket=calls.bucket, Key="pc", UploadId=upload, PartNumber=1,
                                    CopySource=source, CopySourceRange=f"bytes=0-{PART - 1}")
    tags = [{"PartNumber": 1, "ETag": tag["CopyPartResult"]["ETag"]}, part("pc", upload, 2, b"2")]
    on("bad range", "upload_part_copy", Key="pc", UploadId=upload, PartNumber=3, CopySource=source,
       CopySourceRange="bytes=0-99999999")
    calls.s3.complete_multipart_upload(Bucket=calls.bucket, Key="pc", UploadId=upload,
                                       MultipartUpload={"Parts": tags})
    body = calls.s3.get_object(Bucket=calls.bucket, Key="pc")["Body"].read()
    print(f"copied parts\t{hashlib.md5(body).hexdigest()}")
    on("part number 0", "upload_part", Key="pc", UploadId=upload, PartNumber=0, Body=b"1")
    on("part number 10001", "upload_part", Key="pc", UploadId=upload, PartNumber=10001, Body=b"1")


def buckets(calls):
    call = calls.call
    call("no bucket", "list_objects_v2", Bucket="nobucket")
    call("head no bucket", "head_bucket", Bucket="nobucket")
    call("put to no bucket", "put_object", Bucket="nobucket", Key="a", Body=b"1")
    call("delete no bucket", "delete_bucket", Bucket="nobucket")
    call("make", "create_bucket", Bucket="another")
    call("head", "head_bucket", Bucket="another")
    call("make again", "create_bucket", Bucket="another")
    call("location", "get_bucket_location", Bucket="another")
    call("versioning", "get_bucket_versioning", Bucket="another")
    call("put", "put_object", Bucket="another", Key="d/k", Body=b"1")
    call("delete, not empty", "delete_bucket", Bucket="another")
    call("delete key", "delete_object", Bucket="another", Key="d/k")
    call("delete", "delete_bucket", Bucket="another")
    call("head deleted", "head_bucket", Bucket="another")


def names(calls):
    on = calls.on
    for key in ["a//b", "/a", "a/../b", "..", ".", "a/./b", "x" * 256, "n/" + "x" * 255,
                "k/" * 400 + "k", "k/" * 600]:
        on(f"key {key[:20]} of {len(key)}", "put_object", Key=key, Body=b"1")


def main():
    calls = Calls(sys.argv[1])
    calls.call("make bucket", "create_bucket", Bucket=calls.bucket)
    for part in [objects, ranges, conditions, listings, tags, copies, parts, buckets, names]:
        print(f"-- {part.__name__}")
        part(calls)


if __name__ == "__main__":
    main()
