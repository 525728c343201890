"""An answer as blocks: the same ones, in whatever pieces it comes."""

from dormouse_gateway.openai.blocks import Blocks
from dormouse_gateway.openai.shapes import Piece, ToolCall


def test_pieces_of_any_size_make_the_same_blocks():
    finely = [Piece(0, reasoning="a"), Piece(0, reasoning="b"), Piece(0, "c"), Piece(0, "d")]
    finely += [Piece(0, calls=[ToolCall(0, name="f", id="1")]), Piece(0, calls=[ToolCall(0, "{")])]
    finely += [Piece(0, calls=[ToolCall(0, "}"), ToolCall(1, "{}", "g", "2")])]
    coarsely = [Piece(0, "cd", reasoning="ab", calls=[ToolCall(0, "{}", "f", "1"), ToolCall(1, "{}", "g", "2")])]
    told = []
    for pieces in (finely, coarsely):
        blocks = Blocks()
        steps = [step for piece in pieces for step in blocks.take(piece)] + list(blocks.end())
        assert [step.block.index for step in steps if step.what == "begun"] == [0, 1, 2, 3]
        assert [step.block for step in steps if step.what == "ended"] == blocks.blocks
        told.append([(block.kind, block.said, block.name, block.id) for block in blocks.blocks])
    assert (
        told[0]
        == told[1]
        == [
            ("reasoning", "ab", "", ""),
            ("text", "cd", "", ""),
            ("call", "{}", "f", "1"),
            ("call", "{}", "g", "2"),
        ]
    )
