"""Private text that differs from pass to pass, and shared text that does not (case LG5)."""

from infra.replay.variants import Variations
from infra.sampling.sample import SampleEntry

SYSTEM = "be brief and kind"


def request(number, *texts, talk=None):
    roles = ("system", "user", "assistant", "user")
    messages = tuple({"role": r, "content": t} for r, t in zip(roles, texts, strict=False))
    return SampleEntry(
        request_id=f"r{number}", conversation_id=talk, arrival_s=number, prompt_tokens=9, output_tokens=4,
        messages=messages,
    )  # fmt: skip


def texts(entry):
    return [m["content"] for m in entry.messages]


def test_the_first_pass_is_what_was_recorded():
    one = request(1, SYSTEM, "a b c d e")
    assert Variations([one]).of(one, 0) is one


def test_shared_words_stay_and_private_ones_keep_their_number():
    one = request(1, SYSTEM, "please tell me a b c d e f")
    two = request(2, SYSTEM, "please tell me g h i j k l")
    found = texts(Variations([one, two]).of(one, 3))
    assert found[0] == SYSTEM
    assert found[1].startswith("please tell me ")
    assert found[1] != "please tell me a b c d e f"
    assert sorted(found[1].split()) == sorted(["please", "tell", "me", "a", "b", "c", "d", "e", "f"])


def test_turns_of_one_conversation_go_on_sharing_what_they_say():
    first = request(1, SYSTEM, "a b c d e f g", talk="t")
    second = request(2, SYSTEM, "a b c d e f g", "yes it is", "h i j k l m", talk="t")
    other = request(3, SYSTEM, "n o p q r s", talk="u")
    variations = Variations([first, second, other])
    one, two = texts(variations.of(first, 5)), texts(variations.of(second, 5))
    assert one == two[:2]
    assert one[1] != "a b c d e f g"


def test_every_pass_differs_from_every_other():
    one, two = request(1, SYSTEM, "a b c d e f g h i j"), request(2, SYSTEM, "k l m n o p q r s t")
    variations = Variations([one, two])
    assert len({texts(variations.of(one, i))[1] for i in range(50)}) == 50


def test_block_ids_of_one_conversation_change_and_shared_ones_stay():
    def blocks(number, *ids):
        return SampleEntry(
            request_id=f"r{number}", arrival_s=number, prompt_tokens=1024, output_tokens=4, block_ids=ids
        )

    one, two = blocks(1, 7, 8, 9), blocks(2, 7, 10)
    variations = Variations([one, two])
    found = variations.of(one, 2).block_ids
    assert found[0] == 7
    assert not set(found[1:]) & {8, 9, 10}
    assert found == variations.of(one, 2).block_ids
    assert found != variations.of(one, 3).block_ids
