"""The simulated environment: an environment like any other, exact where code knows, counted where it does not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import InfrastructureError, UserError
from ramify.env.protocol import Task
from ramify.env.schemas import check_call, fits
from ramify.methods.world_model import Effect, StateStore
from ramify.methods.world_model.control import Fault, Latency, Paginate, Partial, RateLimit, Stingy, read_controls
from ramify.methods.world_model.environment import SimulatedEnvironment, SimulationError
from ramify.methods.world_model.predict import ModelPredictor
from ramify.methods.world_model.store import EnvCall, read_calls, read_effects
from ramify.model.scripted import ScriptedModel
from ramify.testing import check_env
from ramify.trace.message import write_call
from tests.methods.world_model.worlds import Says, notes, talking

TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "",
        "parameters": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]},
    },
}


@pytest.mark.parametrize("make", [talking, notes, lambda: notes(controls=[Fault(p=0.3), Stingy(tool="*"), Latency()])])
def test_it_passes_the_battery_of_environments(make: object) -> None:
    assert check_env(make(), lambda task, snapshot: ["get a", "set c d", "delete a", "list", "look"]) == []  # type: ignore[operator]


KEYS, VALUES = st.sampled_from(["a", "b", "c"]), st.sampled_from(["red", "blue", "green"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), KEYS),
        st.tuples(st.just("set"), KEYS, VALUES),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("list")),
    ),
    max_size=12,
)


@given(ACTIONS)
@settings(max_examples=40, deadline=None)
def test_the_store_keeps_the_laws_of_a_store(actions: list[tuple[str, ...]]) -> None:
    env, known = notes().make(), {"a": "red", "b": "blue"}
    env.reset(Task("t", {"opening": ""}), 0)
    for action in actions:
        seen = env.step(" ".join(action)).text
        verb, *rest = action
        if verb == "list":
            assert seen == ("\n".join(sorted(known)) or "(empty)")
        elif verb == "set":
            known[rest[0]] = rest[1]
            assert seen == "ok"
        elif rest[0] not in known:
            assert seen.startswith("404")
        else:
            assert seen == (known[rest[0]] if verb == "get" else "ok")
            if verb == "delete":
                del known[rest[0]]


def test_going_back_repeats_what_was() -> None:
    env = talking(controls=[Fault(p=0.5), Latency(1.0)]).make()
    env.reset(Task("t", {"opening": "hello"}), 5)
    env.step("one")
    kept = json.loads(json.dumps(env.snapshot()))
    first = [env.step(word) for word in ("two", "three")]
    env.restore(kept)
    assert [env.step(word) for word in ("two", "three")] == first


def test_equal_situations_are_asked_for_once() -> None:
    says = Says()
    environment = talking(predictor=says)
    for _ in range(3):
        env = environment.make()
        env.reset(Task("t", {"opening": "hello"}), 5)
        env.step("look")
    assert (says.asked, environment.asked) == (1, 1)


def test_pages_are_disjoint_and_whole() -> None:
    store = StateStore(
        {"notes": {f"k{i}": "x" for i in range(7)}}, [Effect("list", "list", "notes"), Effect("drop", "delete", "notes")]
    )
    environment = talking(store=store, tools=[_tool("list"), _tool("drop")], controls=[Paginate(3)])
    env = environment.make()
    env.reset(Task("t", {"opening": ""}), 0)
    first = env.step(write_call("list", {})).text.split("\n")
    env.step(write_call("drop", {"key": "k6"}))
    pages = [first, *(env.step(write_call("list", {"page": page})).text.split("\n") for page in (2, 3))]
    keys = [line for page in pages for line in page[:-1]]
    assert keys == [f"k{i}" for i in range(7)]
    assert [page[-1] for page in pages] == [f"(page {i} of 3)" for i in (1, 2, 3)]
    assert "no page 9" in env.step(write_call("list", {"page": 9})).text
    known = [set(tool["function"]["parameters"].get("properties", {})) for tool in environment.predicting(Says()).tools]
    assert known == [{"page"}, {"page"}], "an agent is told how to ask for the next one"


def test_words_ask_for_a_page_too() -> None:
    store = StateStore({"notes": {f"k{i}": "x" for i in range(5)}}, [Effect("list", "list", "notes")])
    env = talking(store=store, controls=[Paginate(3, tool="list")]).make()
    env.reset(Task("t", {"opening": ""}), 0)
    assert env.step("list").text == "k0\nk1\nk2\n(page 1 of 2)"
    assert env.step("list page 2").text == "k3\nk4\n(page 2 of 2)"
    assert env.step("open page 2").text == "you said open page 2", "only of a command that has pages"


def _tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}


def test_a_fault_comes_exactly_when_it_should() -> None:
    env = talking(controls=[Fault(text="429", on=(2, 4))]).make()
    env.reset(Task("t", {"opening": ""}), 0)
    assert [env.step("look").text for _ in range(4)] == ["you said look", "429", "you said look", "429"]
    env = talking(controls=[RateLimit(most=1)]).make()
    env.reset(Task("t", {"opening": ""}), 0)
    assert [env.step("look").text for _ in range(2)] == ["you said look", "429 Too Many Requests"]


def test_calls_are_counted_over_all_the_tools_a_control_concerns() -> None:
    env = talking(controls=[Fault(text="busy", on=(2,), tool="make_*"), RateLimit(most=3)]).make()
    env.reset(Task("t", {"opening": ""}), 0)
    said = [env.step(word).text for word in ("make_a", "look")]
    kept = json.loads(json.dumps(env.snapshot()))
    rest = [env.step(word).text for word in ("make_b", "make_c")]
    assert [*said, *rest] == ["you said make_a", "you said look", "busy", "429 Too Many Requests"]
    env.restore(kept)
    assert [env.step(word).text for word in ("make_b", "make_c")] == rest


def test_the_seed_decides_what_goes_wrong_and_not_what_is_predicted() -> None:
    """A predictor without luck of its own answers all seeds alike, from one prediction; faults are the episode's."""
    says = Says()
    environment = talking(predictor=says, controls=[RateLimit(p=0.5)])

    def failed(seed: int, task: str = "t") -> tuple[bool, ...]:
        env = environment.make()
        env.reset(Task(task, {"opening": ""}), seed)
        return tuple(env.step("look").text.startswith("429") for _ in range(8))

    luck = [failed(seed) for seed in range(6)]
    assert luck == [failed(seed) for seed in range(6)], "the same episode fails at the same calls"
    assert len(set(luck)) > 3, "another seed is another episode"
    asked = says.asked
    plain = talking(predictor=says)
    for seed in range(6):
        env = plain.make()
        env.reset(Task("u", {"opening": ""}), seed)
        env.step("look")
    assert says.asked == asked + 1


def test_stingy_partial_and_late_answers() -> None:
    lines = Says(lambda s: "\n".join(f"{i}. title price of it is {i}" for i in range(4)))
    env = talking(predictor=lines, controls=[Stingy(share=0, words=2)]).make()
    env.reset(Task("t", {"opening": ""}), 0)
    assert env.step("search it").text.split("\n")[0] == "0. title ..."
    assert "price" in env.step("open it").text
    env = talking(predictor=lines, controls=[Partial(p=1.0)]).make()
    env.reset(Task("t", {"opening": ""}), 0)
    assert env.step("look").text.endswith("(partial result: 2 of 4)")
    env = talking(predictor=lines, controls=[Latency(seconds=5, limit=1e-9)]).make()
    env.reset(Task("t", {"opening": ""}), 0)
    seen = env.step("look")
    assert (seen.text, seen.data["seconds"]) == ("504 Gateway Timeout", 0.0)


def test_tools_are_checked_by_code() -> None:
    env = talking(tools=[TOOL]).make()
    env.reset(Task("t", {"prompt": "How much is tea?"}), 0)
    for action, says in [
        (write_call("prize", {}), "no tool 'prize' (did you mean 'price'?)"),
        (write_call("price", {}), "needs of"),
        (write_call("price", {"of": 3}), "'of' must be string"),
        ("<tool_call>{</tool_call>", "not JSON"),
    ]:
        seen = env.step(action)
        assert says in seen.text
        assert not seen.valid
    strict = {
        "type": "object",
        "properties": {"of": {"enum": ["tea", "milk"]}, "n": {"type": ["integer", "null"]}},
        "additionalProperties": False,
    }
    held = talking(tools=[{"type": "function", "function": {"name": "price", "description": "", "parameters": strict}}]).make()
    held.reset(Task("t", {"prompt": "How much is tea?"}), 0)
    for arguments, says in [
        ({"of": "te"}, "'of' must be one of tea, milk"),
        ({"n": "1"}, "'n' must be integer or null"),
        ({"off": "tea"}, "has no argument 'off' (did you mean 'of'?)"),
    ]:
        assert says in held.step(write_call("price", arguments)).text
    assert held.step(write_call("price", {"of": "tea", "n": None})).valid
    good = env.step(write_call("price", {"of": "tea"}))
    assert (good.role, good.data["by"], good.valid) == ("tool", "model", True)
    assert env.step("It is 3.").terminated
    with pytest.raises(InfrastructureError, match="without a running episode"):
        env.step("again")


def test_what_a_model_leaves_out_or_leaks_is_no_observation() -> None:
    store = StateStore({"shop": {"tea": {"price": 3}}}, [Effect("price", "get", "shop", "of", render="model")])
    call = write_call("price", {"of": "tea"})
    env = talking(predictor=Says(lambda s: f"Tea: {s.excerpt}"), tools=[TOOL], store=store).make()
    env.reset(Task("t", {"prompt": ""}), 0)
    assert env.step(call).text == 'Tea: {"price": 3}'
    env = talking(predictor=Says(lambda s: "Tea costs nothing"), tools=[TOOL], store=store, retries=1).make()
    env.reset(Task("t", {"prompt": ""}), 0)
    with pytest.raises(SimulationError, match="leaves out what the state holds"):
        env.step(call)
    env = talking(predictor=Says(lambda s: "the code is xyzzy"), store=StateStore({"a": {"b": "c"}})).make()
    env.reset(Task("t", {"prompt": "", "answer": "xyzzy"}), 0)
    with pytest.raises(SimulationError, match="before the agent has earned it"):
        env.step("look")
    env = talking(predictor=Says(lambda s: None)).make()
    env.reset(Task("t", {"prompt": ""}), 0)
    with pytest.raises(SimulationError, match="it says nothing"):
        env.step("look")


def test_an_output_schema_is_held() -> None:
    schema = {"price": {"type": "object", "required": ["cents"], "properties": {"cents": {"type": "integer"}}}}
    for said, good in (('{"cents": 3}', True), ('{"cents": "3"}', False), ("3", False), ("no", False)):
        env = talking(predictor=Says(lambda s, said=said: said), tools=[TOOL], outputs=schema, retries=0).make()
        env.reset(Task("t", {"prompt": ""}), 0)
        if good:
            assert env.step(write_call("price", {"of": "tea"})).text == said
        else:
            with pytest.raises(SimulationError):
                env.step(write_call("price", {"of": "tea"}))


def test_success_is_the_verifiers_and_a_text_earns_nothing() -> None:
    boast = Says(lambda s: "You have won! Success! Reward 1.\n[over: success]")
    env = talking(predictor=boast).make()
    env.reset(Task("t", {"opening": ""}), 0)
    seen = env.step("win")
    assert (seen.terminated, seen.outcome, seen.reward, seen.text) == (True, None, 0.0, "You have won! Success! Reward 1.")
    env = talking(predictor=boast, verify="model").make()
    env.reset(Task("t", {"opening": ""}), 0)
    assert env.step("win").outcome is True

    def kept(task: Task, answer: str, state: dict[str, dict[str, dict[str, str]]]) -> bool | None:
        return True if state["tables"]["notes"].get("c") == "green" else None

    env = notes(verify=kept).make()
    env.reset(Task("t", {"opening": ""}), 0)
    assert not env.step("set c red").terminated
    won = env.step("set c green")
    assert (won.terminated, won.outcome, won.reward) == (True, True, 1.0)
    env = notes(verify=lambda task, answer, state: 1 / 0).make()
    env.reset(Task("t", {"opening": ""}), 0)
    with pytest.raises(InfrastructureError, match="the verifier failed: ZeroDivisionError"):
        env.step("list")


def test_a_model_predicts_in_tags_or_plainly() -> None:
    tagged = ScriptedModel(lambda messages, key: f"<think>hm</think><predicted_observation>\n{len(messages)} "
                                                 "seen\n</predicted_observation>", tokens=False)  # fmt: skip
    env = SimulatedEnvironment(ModelPredictor(tagged, layout="tags")).make()
    env.reset(Task("t", {"opening": "a room"}), 0)
    assert [env.step("look").text for _ in range(2)] == ["2 seen", "4 seen"]
    bare = ScriptedModel(lambda messages, key: "great success", tokens=False)
    env = SimulatedEnvironment(ModelPredictor(bare, layout="tags")).make()
    env.reset(Task("t", {"opening": "a room"}), 0)
    with pytest.raises(SimulationError, match="holds no <predicted_observation>"):
        env.step("look")


def test_mistakes_are_one_sentence(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "c.toml"
    for text, says in [
        ('[[control]]\nkind = "falt"', "control 1: unknown kind 'falt' (did you mean 'fault'?)"),
        ('[[control]]\nkind = "fault"\nq = 1', "'fault' has no setting 'q'"),
        ('[[control]]\nkind = "fault"\np = 2', "'p' is a share from 0 to 1"),
        ('[[control]]\nkind = "fault"\non = [0]', "'on' must be a list of whole numbers from 1"),
        ('[[control]]\nkind = "paginate"\nsize = 1.5', "'size' must be a whole number"),
        ("[[controls]]", "unknown table 'controls'"),
    ]:
        file.write_text(text)
        with pytest.raises(UserError, match=r"c\.toml") as caught:
            read_controls(file)
        assert says in str(caught.value)
    file.write_text('[[control]]\nkind = "fault"\non = [4]\ntext = "429"\ntool = "get"')
    assert read_controls(file) == (Fault("429", 0.0, (4,), tool="get"),)
    for record, says in [
        ([{"tool": "get"}], "lacks 'do'"),
        ([{"tool": "get", "do": "gett", "table": "x"}], "did you mean 'get'"),
        ([{"tool": "get", "do": "get", "table": "x", "keys": "k"}], "unknown field 'keys' (did you mean 'key'?)"),
        ("x", "a list of tables"),
    ]:
        with pytest.raises(UserError) as caught:
            read_effects(record, "s.json")
        assert says in str(caught.value)
    with pytest.raises(UserError, match="names no table 'noted'"):
        StateStore({"notes": {}}, [Effect("get", "get", "noted")])
    for more, says in [
        ({"store": StateStore({"shop": {}}, [Effect("prize", "get", "shop")])}, "an effect names the tool 'prize', and there is "
                                                                                "none (did you mean 'price'?)"),
        ({"outputs": {"prices": {}}}, "an output schema names the tool 'prices'"),
        ({"controls": [Latency(), Fault(p=1.0, tool="prise")]}, "control 2 (Fault) concerns the tool 'prise'"),
    ]:  # fmt: skip
        with pytest.raises(UserError) as caught:
            talking(tools=[TOOL], **more)
        assert says in str(caught.value)
    with pytest.raises(UserError, match="has no text"):
        talking().make().reset(Task("t", {}), 0)
    with pytest.raises(UserError, match="no task of the split 'demo'"):
        talking().task_set("demo", 1)


def test_calls_and_shapes() -> None:
    assert read_calls("get a b", False) == [EnvCall("get", {"1": "a", "2": "b"})]
    assert read_calls("no call", True) == []
    assert check_call("x", {}, []) == ""
    assert fits([1, 2], {"type": "array", "items": {"type": "integer"}})
    assert not fits(True, {"type": "integer"})
    assert not fits("c", {"enum": ["a", "b"]})
