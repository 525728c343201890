"""Pictures of the benchmark have as many tokens as their encoder makes rows, and are all different."""

from bench.multimodal import NUM_TILES, QUESTION_TOKENS, TILE_TOKENS, make_picture, make_question


def test_pictures_and_questions_are_each_their_own():
    pictures = [make_picture(seed, 1) for seed in range(3)]
    assert len({picture.digest for picture in pictures}) == 3
    assert sum(make_picture(0, NUM_TILES).runs) == NUM_TILES * TILE_TOKENS
    assert len({tuple(make_question(seed)) for seed in range(40)}) == 40
    assert {len(make_question(seed)) for seed in range(40)} == {QUESTION_TOKENS}
