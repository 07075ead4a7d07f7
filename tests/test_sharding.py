"""Sharding annotations: read, printed, said in axes of one mesh."""
from __future__ import annotations

import numpy as np
import pytest

from hloc.errors import ParseError, Source, Span
from hloc.sharding.meshes import AxisSharding, DeviceMesh, axes_of, digits_of, mesh_of
from hloc.sharding.sdy import frontend_attributes, manual_axes, meshes_of, shardings_of
from hloc.sharding.text import parse_sharding

TEXTS = [
    "{replicated}", "{manual}", "{unreduced}", "{unknown}", "{maximal device=3}", "{replicated shard_like 5}",
    "{devices=[2,1]<=[2]}", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{devices=[2,2]0,2,1,3}",
    "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}", "{devices=[4]<=[4] shard_as 7}",
    "{devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}}", '{replicated metadata={op_name="a{b}"}}',
    "{mesh['x'=2,'y'=4], [{'x'}, {'y':(1)2, ?}], replicated={'y':(2)2}}", "{maximal_mesh[device_id=2]}",
    "{mesh['x'=2], [{}], unreduced=max{'x'}}", "{mesh['x'=2], replicated}",
    "{mesh['x'=4], device_ids=(3,2,1,0), [{'x'}]}", "{mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), [{'x'}]}",
    "{{replicated}, {devices=[2]<=[2]}}", "{}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_sharding_prints_as_it_is_read(text):
    assert str(parse_sharding(text)) == text


@pytest.mark.parametrize("text, said", [
    ("{devices=[2]}", "a whole number"), ("{devices=[2]<=[2]T(1)}", "an order of the 1 dimensions"),
    ("{devices=[2]<=[9999,9999]}", "at most 1048576 devices"), ("{last_tile_dim_replicate}", "a sharding"),
    ("{replicated} x", "the end"), ("{mesh['x'=2], [{'x'}], other={'x'}}", "not other"), ("{" * 200, "levels")])
def test_what_is_no_sharding_has_a_place(text, said):
    source = Source(f"sharding={text}", "m.hlo")
    with pytest.raises(ParseError, match="m.hlo:1:10: error") as caught:
        parse_sharding(text, Span(source, 9, len(source.text)))
    assert said in str(caught.value)


@pytest.mark.parametrize("tiles, sizes, order", [
    ((2, 1, 4), (8,), (0,)), ((1, 4, 2), (2, 4), (1, 0)), ((2, 3, 2), (2, 3, 2), (2, 1, 0)), ((4, 2), (2, 2, 2), (1, 0, 2))])
def test_tiles_lie_where_xla_puts_them(tiles, sizes, order):
    client = pytest.importorskip("jaxlib.xla_client", reason="jaxlib is not installed")
    theirs = client.HloSharding.iota_tile(dims=tiles, reshape_dims=sizes, transpose_perm=order, subgroup_types=[])
    written = f"{{devices=[{','.join(map(str, tiles))}]<=[{','.join(map(str, sizes))}]T({','.join(map(str, order))})}}"
    assert parse_sharding(written).assignment().reshape(-1).tolist() == list(theirs.tile_assignment_devices())


def recovered(*texts: str) -> tuple[DeviceMesh, list]:
    shardings = [parse_sharding(t) for t in texts]
    mesh = mesh_of(shardings)
    return mesh, [axes_of(s, s.data_rank if s.kind in ("tiled", "named") else 2, mesh) for s in shardings]


def test_axes_of_a_mesh_are_recovered_from_tiles():
    mesh, found = recovered("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", "{devices=[8,1]<=[8]}",
                            "{devices=[1,2,4]0,4,1,5,2,7,3,6 last_tile_dim_replicate}", "{replicated}")
    assert mesh.sizes == (4, 2)
    assert found == [AxisSharding(((0,), ())), AxisSharding(((0, 1), ())), None, AxisSharding(((), ()))]
    mesh, found = recovered("{devices=[1,2,4]0,4,1,5,2,6,3,7 last_tile_dim_replicate}", "{devices=[4,2]<=[8]}")
    assert found == [AxisSharding(((), (1,))), AxisSharding(((0, 1), (2,)))]


def test_manual_subgroups_are_axes():
    mesh, (found, whole) = recovered("{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}", "{manual}")
    assert mesh.sizes == (2, 4) and found == AxisSharding(((), (1,)), frozenset([0]))
    assert whole.manual == {0, 1}


def test_devices_out_of_order_are_the_meshs_order():
    mesh, found = recovered("{devices=[4]0,2,3,1}", "{devices=[2,2]0,2,3,1 last_tile_dim_replicate}")
    assert mesh.devices == (0, 2, 3, 1) and found == [AxisSharding(((0, 1),)), AxisSharding(((0,),))]
    assert mesh.parts((0, 1)).tolist() == [0, 3, 1, 2] and mesh.groups((1,)).tolist() == [[0, 2], [3, 1]]


def test_annotations_that_share_no_mesh_have_no_axes():
    mesh, found = recovered("{devices=[2,3]<=[6]}", "{devices=[3,2]<=[6]}")
    assert mesh.sizes == (2, 3) and found == [AxisSharding(((0,), (1,))), None]


@pytest.mark.parametrize("seed", range(40))
def test_axes_and_annotations_are_the_same_places(seed):
    """Any axes of any mesh, as an annotation and back; the tiles are where the parts are."""
    random = np.random.default_rng(seed)
    sizes = tuple(int(n) for n in random.choice([2, 3, 4], random.integers(1, 4)))
    devices = tuple(random.permutation(int(np.prod(sizes))).tolist()) if seed % 3 == 0 else None
    mesh = DeviceMesh(sizes, (), devices)
    axes = random.permutation(len(sizes)).tolist()
    cuts = sorted(random.integers(0, len(axes) + 1, 2))
    manual = frozenset(axes[cuts[1]:]) if seed % 2 else frozenset()
    sharding = AxisSharding((tuple(axes[:cuts[0]]), tuple(axes[cuts[0]:cuts[1]])), manual)
    written = mesh.annotation(sharding)
    assert axes_of(parse_sharding(str(written)), 2, mesh) == sharding
    if written.kind == "tiled":
        tiles = written.assignment()
        for part in range(mesh.count(sharding.dimensions[0])):
            assert set(tiles[part].reshape(-1).tolist()) == set(np.flatnonzero(mesh.parts(sharding.dimensions[0]) == part))


def test_digits_are_those_of_the_device_number():
    assert digits_of(np.arange(8).reshape(2, 4)).along == (((2, 4),), ((4, 1),))
    assert digits_of(np.arange(8).reshape(2, 2, 2).transpose(2, 0, 1).reshape(4, 2)).along == (((2, 1), (2, 4)), ((2, 2),))
    assert digits_of(np.array([0, 1, 3, 2])) is None


def test_shardys_annotations_are_read():
    module = frontend_attributes('{xla.sdy.meshes={m = #sdy.mesh<["x"=2, "y"=4]>, n = #sdy.mesh<["x"=2], '
                                 'device_ids=[1, 0]>, one = #sdy.mesh<[], device_ids=[3]>}}')
    meshes = meshes_of(module)
    assert meshes["m"].axes == (("x", 2), ("y", 4)) and meshes["n"].devices == (1, 0)
    value = frontend_attributes('{a="b",xla.sdy.sharding="#sdy.sharding<@m, [{\\"x\\", ?}, {\\"y\\":(1)2}p1], '
                                'replicated={\\"y\\":(2)2}>"}')["xla.sdy.sharding"]
    assert str(shardings_of(value, meshes)[0]) == (
        "{mesh['x'=2,'y'=4], [{'x', ?}, {'y':(1)2}], replicated={'y':(2)2}}")
    several = shardings_of('#sdy.sharding_per_value<[<@m, [{}]>, <@one, []>]>', meshes)
    assert [s.kind for s in several] == ["named", "maximal"]
    assert manual_axes('#sdy<manual_axes{"x", "y"}>') == ("x", "y")
    with pytest.raises(ParseError, match="a mesh that the module defines"):
        shardings_of("#sdy.sharding<@q, [{}]>", meshes)
