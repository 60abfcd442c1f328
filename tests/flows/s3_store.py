"""An S3 store on loopback that checks keys and signatures, in memory: moto's server."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import httpx

from deepsearch_rl.core.processes import LOOPBACK, running_server
from tests.ports import free_port

REGION = "us-east-1"
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class S3Store:
    """Where the store is, and the one pair of keys that it takes."""

    url: str
    key: str
    secret: str

    @property
    def environment(self) -> Mapping[str, str]:
        """The keys, as DVC and MLflow read them."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": REGION,
        }

    def make_bucket(self, name: str) -> None:
        self._client("s3").create_bucket(Bucket=name)

    def names(self, bucket: str) -> list[str]:
        """Names of all objects of a bucket."""
        pages = self._client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def _client(self, service: str) -> Any:
        keys = {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret}
        return boto3.client(service, endpoint_url=self.url, region_name=REGION, **keys)


@contextmanager
def running_store(port: int = 0) -> Iterator[S3Store]:
    """Run a store without buckets until the end of the block."""
    port = port or free_port()
    url = f"http://{LOOPBACK}:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", LOOPBACK, "--port", str(port)]
    with running_server("the S3 store", command, url, "/moto-api/data.json", START_TIMEOUT_S):
        users = boto3.client(
            "iam",
            endpoint_url=url,
            region_name=REGION,
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        users.create_user(UserName="team")
        policy = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
        }
        users.put_user_policy(UserName="team", PolicyName="all", PolicyDocument=json.dumps(policy))
        keys = users.create_access_key(UserName="team")["AccessKey"]
        # From now on it asks for keys
        httpx.post(f"{url}/moto-api/reset-auth", content="0").raise_for_status()
        yield S3Store(url, keys["AccessKeyId"], keys["SecretAccessKey"])
