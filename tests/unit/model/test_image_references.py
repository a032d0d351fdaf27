"""Names of images lead to registries and to directories that are offered, never to other files."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.host.runtime.containers.image_stores import NODE_STORE
from holdfast.host.runtime.containers.images import local
from holdfast.model.errors import Invalid
from holdfast.model.image_references import TRANSPORTS, image_fault, registry_name
from holdfast.model.kinds.template import Runtime, Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.validation import validate
from tests.scale import examples

DIGEST = "sha256:" + "0123456789abcdef" * 4
MARKS = (":", "/", "@", "//", ".", "..", "[", "]", "5000", DIGEST)
FILES = (
    "docker-archive:/root/x.tar",
    "docker-archive:x.tar",
    "oci:/srv/secrets",
    "oci:latest",
    "oci:5000/srv/x",
    "oci-archive:a.tar:tag",
    "dir:/etc",
    "docker-daemon:app:1",
    "containers-storage:app",
    "containers-storage:[overlay@/var/lib/containers]app",
    "sif:/root/x.sif",
    "docker://app:1",
)


@pytest.mark.parametrize(
    "image, name",
    [
        ("app", "app"),
        ("app:1", "app:1"),
        ("team/app:1.2-rc_3", "team/app:1.2-rc_3"),
        ("registry.example.com/team/app", "registry.example.com/team/app"),
        ("registry.example.com:5000/app:1", "registry.example.com:5000/app:1"),
        ("localhost/app:1", "localhost/app:1"),
        ("[2001:db8::1]:5000/app:1", "[2001:db8::1]:5000/app:1"),
        ("a.b/c__d/e--f.g", "a.b/c__d/e--f.g"),
        (f"r.example/app@{DIGEST}", f"r.example/app@{DIGEST}"),
        (f"r.example/app:1@{DIGEST}", f"r.example/app@{DIGEST}"),
        # A host or a directory may be called as a transport is; a colon makes the difference.
        ("oci/app:1", "oci/app:1"),
        ("r.example/oci:1", "r.example/oci:1"),
    ],
)
def test_a_reference_is_asked_of_podman_by_its_name(image: str, name: str) -> None:
    assert image_fault(image) == ""
    assert registry_name(image) == name


@pytest.mark.parametrize(
    "image",
    [
        *FILES,
        "",
        "-x",
        "--authfile=/x",
        "App",
        "a b",
        "a//b",
        "a/../b",
        "../a",
        "./a",
        "a:",
        "a:1:2",
        "a@sha256:12",
        "a@sha512:" + "0" * 128,
        "a/b:1/c",
        "file:///etc",
        "0" * 64,
        "sha256:" + "0" * 64,
        "sha256:0123456789ab",
        "a" * 513,
        "/srv/../etc",
        "/srv/a,lowerdir=b",
        "/srv/a:b",
        "/srv/a\nb",
    ],
)
def test_what_is_no_reference_is_refused_by_validation_and_by_the_agent(image: str) -> None:
    assert image_fault(image)
    template = Template(runtime=Runtime.CONTAINER, image=image)
    work = Workload(ObjectMeta(name="w", namespace="acme"), spec=WorkloadSpec(template=template))
    assert [it.path for it in validate(work)] == ["spec.template.image"]
    with pytest.raises(Invalid, match="image"):
        local(image, (), NODE_STORE)


pieces = st.one_of(
    st.sampled_from((*sorted(TRANSPORTS), *FILES, *MARKS)),
    st.text("abcAB0-_.:/@", max_size=4),
)


@settings(max_examples=examples(3_000), deadline=None)
@given(image=st.lists(pieces, max_size=6).map("".join))
@example(image="oci:5000/srv/x")
@example(image="dir:a")
def test_no_name_that_is_accepted_starts_a_transport_of_files(image: str) -> None:
    """Whatever podman makes of the text by itself."""
    if image_fault(image):
        return
    if image.startswith("/"):
        assert ".." not in image.split("/")
        return
    for text in (image, registry_name(image)):
        assert not text.startswith(tuple(f"{it}:" for it in TRANSPORTS))
        # The form in which it is pulled has one transport, and no option begins it.
        assert f"docker://{text}".split(":", 1)[0] == "docker"
        assert text[0] != "-"
