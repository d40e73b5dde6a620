"""The page at `/` in a real browser."""

import re
from pathlib import Path

import pytest
from stub_api import KEY, Script, create_app, serving

from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve import app as server
from dlmc_runtime.serve.models import Catalog, Served
from dlmc_runtime.serve.settings import Settings

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE = {"width": 320, "height": 640}
BUSY = {"message": "the queue is full", "type": "overloaded"}
MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
# A lone number of a run, as people read it.
FORWARDS = ".number:first-child b"


@pytest.fixture(scope="module")
def script():
    return Script()


@pytest.fixture(scope="module")
def address(script):
    with serving(create_app(script)) as address:
        yield address


# Of this file alone: while it is open, its event loop is the thread's, and asyncio.run refuses.
@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM.exists():
        pytest.skip(f"Chromium is not installed: {CHROMIUM} is missing")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def contexts(browser):
    """Return a window with these options, the same for all who ask."""
    open_ones = {}

    def get(**options):
        # Without transitions: a colour is there at once.
        options = {"reduced_motion": "reduce"} | options
        if repr(options) not in open_ones:
            open_ones[repr(options)] = browser.new_context(**options)
        return open_ones[repr(options)]

    yield get
    for context in open_ones.values():
        context.close()


@pytest.fixture
def visit(contexts, script, address):
    """Open the page; at the end nothing was logged and no request left the origin."""
    pages, logged, asked = [], [], []
    script.reset()

    def open_page(path="/", *, models=True, **options):
        page = contexts(**options).new_page()
        pages.append(page)
        page.on("console", lambda message: logged.append(message.text))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address + path)
        if models:
            wait(page, "[name=model] option", to_have_count=2)
        return page

    yield open_page
    for page in pages:
        page.close()
    # A refused request is logged by the browser itself, with its status.
    assert not [text for text in logged if "Failed to load resource" not in text]
    assert asked
    assert not [url for url in asked if not url.startswith(address + "/")]


def wait(page, selector, **wanted):
    """Wait until what is selected is as wanted: ``wait(page, "b", to_have_text="3")``."""
    from playwright.sync_api import expect

    for name, value in wanted.items():
        getattr(expect(page.locator(selector)), name)(value, timeout=20_000)


def say(page, text, panel="chat"):
    page.click(f"#tab-{panel}")
    page.fill(f"#{panel}-text", text)
    page.press(f"#{panel}-text", "Control+Enter")


def finished(page, count=1):
    wait(page, ".run[data-end]", to_have_count=count)


def held(page, script, text="What is a canvas?"):
    """Send a text and wait until the server holds its run after three forwards."""
    script.gate.clear()
    say(page, text)
    wait(page, FORWARDS, to_have_text="3")


def states(page):
    """How many tokens of the canvas are in each state."""
    found = page.eval_on_selector_all(".canvas .token", "all => all.map(e => e.dataset.state)")
    return {state: found.count(state) for state in ("masked", "committed", "final")}


def test_the_canvas_is_shown_while_it_is_denoised(visit, script):
    page = visit()
    held(page, script)
    early = states(page)
    assert early["masked"] > 0
    assert early["committed"] == 12
    numbers = " ".join(page.text_content(".numbers").split())
    assert numbers == "3 forwards 4.00 tokens per forward 12 tokens"
    script.gate.set()
    finished(page)
    assert states(page)["masked"] == 0
    assert states(page)["final"] > 0
    assert int(page.text_content(FORWARDS)) > 3
    assert "sooner than one would think." in page.text_content(".answer")
    assert "stop" in page.text_content(".numbers")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_confidence_is_a_colour_and_a_length(visit, script, scheme):
    page = visit(color_scheme=scheme)
    held(page, script)
    colours = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.canvas [data-level]')]
            .filter(e => e.dataset.state === 'committed')
            .map(e => [e.dataset.level, getComputedStyle(e).backgroundColor]))"""
    )
    assert len(colours) >= 3
    assert len(set(colours.values())) == len(colours)
    legend = page.eval_on_selector_all(
        ".legend [data-level]", "all => all.map(e => getComputedStyle(e).backgroundColor)"
    )
    assert [legend[int(level)] for level in colours] == list(colours.values())
    lengths = page.eval_on_selector_all(
        ".canvas .token[data-level]", "all => all.map(e => getComputedStyle(e).backgroundSize)"
    )
    assert len(set(lengths)) >= 3
    script.gate.set()
    finished(page)
    final = ".canvas [data-state=final]"
    plain = page.eval_on_selector(final, "e => getComputedStyle(e).backgroundColor")
    assert plain == "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_on_the_canvas_has_contrast(visit, scheme):
    page = visit(color_scheme=scheme)
    ratios = page.evaluate(
        """() => {
            const light = ([r, g, b]) => {
                const part = (c) =>
                    c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4;
                return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
            };
            const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
            return [...document.querySelectorAll('.legend [data-level]')].map((e) => {
                const { color, backgroundColor } = getComputedStyle(e);
                const [text, ground] = [light(rgb(color)), light(rgb(backgroundColor))];
                return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
            });
        }"""
    )
    assert len(ratios) == 5
    assert min(ratios) >= 4.5


def test_the_slider_goes_back_through_canvas_states_by_keyboard(visit):
    page = visit()
    say(page, "What is a canvas?")
    finished(page)
    slider = page.locator(".timeline input")
    last = int(slider.input_value())
    assert last >= 5
    whole = states(page)
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert slider.input_value() == str(last - 1)
    assert slider.get_attribute("aria-valuetext").startswith(f"forward {last}, ")
    page.keyboard.press("Home")
    assert states(page)["committed"] == 4
    assert page.locator(".canvas .fresh").count() == 4
    page.locator(".canvas").focus()
    page.keyboard.press("ArrowRight")
    assert states(page)["committed"] == 8
    assert "after forward 2" in page.get_attribute(".canvas", "aria-label")
    page.keyboard.press("End")
    assert states(page) == whole


def test_stepping_back_holds_still_while_more_arrives(visit, script):
    page = visit()
    held(page, script)
    page.locator(".timeline input").focus()
    page.keyboard.press("Home")
    script.gate.set()
    finished(page)
    assert states(page)["committed"] == 4
    page.keyboard.press("End")
    assert states(page)["masked"] == 0


def test_events_may_arrive_in_any_pieces(visit, script):
    page = visit()
    script.piece = 7
    say(page, "Grüße, 世界 🙂")
    finished(page)
    assert page.text_content(".answer").startswith("You wrote: Grüße, 世界 🙂\n")
    assert page.locator(".run .trouble").is_hidden()


def test_a_long_run_keeps_fewer_states_and_both_its_ends(visit):
    kept = visit().evaluate(
        """async () => {
            const { Film, MOST_FRAMES } = await import("/playground/film.js");
            const film = new Film();
            const token = (at, forward) => ({ id: at, text: "a", confidence: null,
                state: at < forward ? "committed" : "masked" });
            const size = 2 * MOST_FRAMES + 1;
            for (let forward = 1; forward <= size; forward += 1) {
                const tokens = [token(forward % 7, 3), token(9, size - forward)];
                film.push({ forward, tokens_per_forward: 1, tokens });
            }
            const forwards = film.frames.map((frame) => frame.forward);
            return { most: MOST_FRAMES, size, forwards };
        }"""
    )
    forwards = kept["forwards"]
    assert (forwards[0], forwards[-1]) == (1, kept["size"])
    assert kept["most"] / 4 < len(forwards) <= kept["most"]
    assert forwards == sorted(set(forwards))


SHARED = [
    ("one two three", "one 2 three", "one  three"),
    ("", "all new", ""),
    ("same", "same", "same"),
    ("a b c d", "c d", "c d"),
    ("x " * 4000, "x " * 4000 + "y", "x " * 750),
]


def test_what_two_texts_share_is_found(visit):
    found = visit().evaluate(
        """async (pairs) => {
            const { compare } = await import("/playground/diff.js");
            return pairs.map(([left, right]) => compare(left, right));
        }""",
        SHARED,
    )
    for (left, right, common), runs in zip(SHARED, found, strict=True):
        for side, text in (("left", left), ("right", right)):
            assert "".join(run["text"] for run in runs[side]) == text
            assert "".join(run["text"] for run in runs[side] if run["same"]) == common


def test_a_replay_ends_at_the_last_state(visit):
    page = visit(timezone_id="UTC")  # a window of its own: its clock stands still from now on
    say(page, "Once more")
    finished(page)
    page.clock.install(time=0)
    page.clock.pause_at(1)
    page.click("text=Replay")
    assert states(page)["committed"] == 4
    assert page.text_content(".play") == "Pause"
    page.clock.run_for(60_000)
    assert page.text_content(".play") == "Replay"
    assert states(page)["masked"] == 0


def test_a_token_says_what_it_is_when_touched(visit, script):
    page = visit()
    held(page, script)
    page.locator(".canvas .token").nth(2).hover()
    assert re.fullmatch(
        r'position 2 · committed · " \w+" · id 2 · [\d.]+ % sure', page.text_content(".inspector")
    )


def test_the_canvas_is_a_text_or_a_grid(visit, script):
    page = visit()
    held(page, script)
    shape = "e => getComputedStyle(e).display"
    assert page.eval_on_selector(".canvas", shape) == "block"
    page.click("text=Grid")
    assert page.eval_on_selector(".canvas", shape) == "flex"


def test_a_chat_has_turns(visit, script):
    page = visit()
    page.select_option("[name=reasoning_effort]", "high")
    say(page, "First")
    finished(page)
    say(page, "Second")
    finished(page, 2)
    path, body = script.bodies[1]
    assert path == "chat/completions"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"].startswith("You wrote: First\n")
    assert page.locator(".said").all_text_contents() == ["First", "Second"]
    reasoning = page.locator(".reasoning").first
    assert reasoning.get_attribute("open") is None
    assert "First I think." in reasoning.text_content()
    assert page.locator(".film[open]").count() == 1
    page.click("text=New chat")
    say(page, "Third")
    finished(page)
    assert len(script.bodies[2][1]["messages"]) == 1


def test_what_the_fields_say_is_what_is_asked(visit, script):
    page = visit()
    fields = {"steps": "8", "threshold": "0.9", "block_length": "16", "temperature": "0.5"}
    for name, value in (fields | {"max_tokens": "40", "seed": "7"}).items():
        page.fill(f"#settings-form [name={name}]", value)
    page.select_option("#settings-form [name=sampler]", "random")
    say(page, "Once", "complete")
    finished(page)
    assert script.bodies == [
        (
            "completions",
            {
                "model": "small",
                "prompt": "Once",
                "max_tokens": 40,
                "temperature": 0.5,
                "seed": 7,
                "diffusion": {
                    "sampler": "random",
                    "steps": 8,
                    "threshold": 0.9,
                    "block_length": 16,
                },
                "stream": True,
                "stream_options": {"include_usage": True},
                "diffusing": True,
            },
        )
    ]
    page.click("#settings-form [type=reset]")
    say(page, "Twice", "complete")
    wait(page, ".answer", to_contain_text="Twice")
    assert "diffusion" not in script.bodies[1][1]


def test_a_model_offers_its_own_samplers_and_says_its_defaults(visit):
    page = visit()
    options = page.locator("#settings-form [name=sampler] option")
    own, *samplers = options.all_text_contents()
    assert own.startswith("confidence_threshold")
    assert samplers == ["low_confidence", "confidence_threshold", "random"]
    assert page.get_attribute("#settings-form [name=threshold]", "placeholder") == "0.9"
    assert page.get_attribute("[name=max_tokens]", "placeholder") == "64"
    page.select_option("[name=model]", "tiny")
    assert options.all_text_contents()[1:] == ["random"]
    assert page.text_content("#settings-summary") == "tiny · random"
    assert page.get_attribute("#settings-form [name=threshold]", "placeholder") == "own"


def test_a_field_that_holds_nonsense_is_not_sent(visit, script):
    page = visit()
    page.fill("#settings-form [name=threshold]", "7")
    say(page, "Hello")
    assert page.evaluate("document.activeElement.name") == "threshold"
    assert not script.bodies


def test_slots_are_filled_in_their_place_and_by_name(visit, script):
    page = visit()
    say(page, "Dear <slot name=who max=8/>, see you <slot name=when max=6/>.", "infill")
    finished(page)
    path, body = script.bodies[0]
    assert (path, body["template"]) == (
        "completions",
        "Dear <slot name=who max=8/>, see you <slot name=when max=6/>.",
    )
    assert page.text_content(".filled") == "Dear the who of all, see you the when of all."
    assert page.locator(".filled mark").all_text_contents() == ["the who of all", "the when of all"]
    assert page.locator(".slots dt").all_text_contents() == ["who", "when"]
    assert page.locator(".slots dd").all_text_contents() == ["the who of all", "the when of all"]


def test_a_slot_can_be_inserted(visit):
    page = visit()
    page.click("#tab-infill")
    page.fill("#infill-text", "Dear ")
    page.click("text=Insert slot")
    page.keyboard.type("name")
    assert page.input_value("#infill-text") == "Dear <slot name=name max=8/>"


def test_two_samplers_run_at_once_and_are_compared(visit, script):
    page = visit()
    page.click("#tab-compare")
    assert page.input_value("[name=samplerA]") == ""
    assert page.input_value("[name=samplerB]") == "low_confidence"
    page.select_option("[name=samplerA]", "low_confidence")
    page.select_option("[name=samplerB]", "random")
    script.gate.clear()
    say(page, "Both", "compare")
    wait(page, FORWARDS, to_have_text=["3", "3"])
    script.gate.set()
    finished(page, 2)
    samplers = {body["diffusion"]["sampler"] for _, body in script.bodies}
    assert samplers == {"low_confidence", "random"}
    verdict = page.text_content("#compare-verdict")
    assert verdict.startswith("B needed ")
    assert "Tokens per forward: A 1.00, B 2.00. The texts differ where marked." in verdict
    assert page.locator(".side .differs").all_text_contents() == ["sooner", "later"]


def test_the_same_text_of_two_samplers_is_said_to_be_the_same(visit):
    page = visit()
    page.click("#tab-compare")
    page.uncheck("[name=chat]")
    say(page, "Both", "compare")
    finished(page, 2)
    assert page.text_content("#compare-verdict").endswith("The texts are the same.")
    assert page.locator(".differs").count() == 0


@pytest.mark.parametrize("by", ["key", "button"])
def test_a_run_can_be_stopped(visit, script, by):
    page = visit()
    held(page, script)
    if by == "key":
        page.keyboard.press("Escape")
    else:
        page.click("#chat-form .stop")
    finished(page)
    page.wait_for_selector("#chat-form [type=submit]")
    assert "stopped" in page.text_content(".numbers")
    assert states(page)["masked"] > 0
    for _ in range(6000):  # until the server has noticed, which is its own affair
        if script.left:
            break
        page.wait_for_timeout(10)
    assert script.left == 1
    assert page.input_value("#chat-text") == "What is a canvas?"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            (400, {"message": "it must be at most 64", "param": "diffusion.steps"}, {}),
            "it must be at most 64 (diffusion.steps).",
        ),
        ((400, {"message": "n: too many", "param": "n"}, {}), "n: too many."),
        (
            (429, BUSY, {"Retry-After": "3"}),
            "the queue is full. The server is busy. Try again in 3 s.",
        ),
        ((500, {}, {}), "The server answered with status 500."),
    ],
    ids=["field", "named", "busy", "bare"],
)
def test_a_refusal_is_shown_in_words(visit, script, error, words):
    page = visit()
    script.error = error
    say(page, "Hello")
    finished(page)
    assert page.text_content(".run .trouble") == words
    assert page.get_attribute(".run .trouble", "role") == "alert"
    assert page.input_value("#chat-text") == "Hello"
    script.error = None
    page.press("#chat-text", "Control+Enter")
    finished(page, 2)
    assert len(script.bodies[-1][1]["messages"]) == 1


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        ("error", "the engine returned NaN."),
        ("end", "The connection broke off before the answer was complete."),
    ],
)
def test_a_stream_that_fails_says_so_and_keeps_its_canvas(visit, script, breaks, words):
    page = visit()
    script.breaks = breaks
    say(page, "Hello")
    finished(page)
    assert page.text_content(".run .trouble") == words
    assert states(page)["committed"] == 8


def test_a_server_that_is_gone_is_said_to_be(visit):
    page = visit()
    page.route("**/v1/**", lambda route: route.abort())
    say(page, "Hello")
    finished(page)
    assert page.text_content(".run .trouble").startswith("The server cannot be reached.")


def test_a_key_is_asked_for_and_kept_for_the_session_only(visit, script):
    script.asks_for_key = True
    page = visit(models=False)
    wait(page, "#model-trouble", to_contain_text="Enter an API key that this server knows")
    assert page.get_attribute("[name=key]", "type") == "password"
    page.fill("[name=key]", KEY)
    page.press("[name=key]", "Tab")
    wait(page, "[name=model] option", to_have_count=2)
    assert page.locator("#model-trouble").is_hidden()
    say(page, "Hello")
    finished(page)
    assert page.locator(".run .trouble").is_hidden()
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    wait(page, "[name=model] option", to_have_count=2)
    assert visit(models=False).input_value("[name=key]") == ""


def test_markup_from_anywhere_is_shown_as_text(visit):
    page = visit()
    say(page, MARKUP)
    finished(page)
    assert page.text_content(".said") == MARKUP
    assert MARKUP in page.text_content(".answer")
    say(page, f"{MARKUP}<slot name=who max=8/>", "infill")
    finished(page, 2)
    assert page.text_content(".filled") == f"{MARKUP}the who of all"
    say(page, MARKUP, "compare")
    finished(page, 4)
    assert page.locator("img, body script").count() == 0
    assert page.title() == "dlmc playground"


@pytest.mark.parametrize("panel", ["chat", "complete", "infill", "compare"])
def test_the_page_fits_a_phone(visit, panel):
    page = visit(f"/#{panel}", viewport=PHONE, has_touch=True, is_mobile=True)
    page.click("#settings summary")
    text = {"infill": "<slot name=who max=8/>"}.get(panel, "word " * 30 + "w" * 90)
    say(page, text, panel)
    finished(page, 2 if panel == "compare" else 1)
    page.click("text=Grid")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    small = page.eval_on_selector_all(
        "button, summary, select, textarea, .layout label, input:not([type=radio], .check input)",
        "all => all.filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 40)"
        ".map(e => e.outerHTML)",
    )
    assert not small


def test_everything_can_be_done_by_keyboard(visit, script):
    page = visit()
    focused = "document.activeElement.id || document.activeElement.className"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "skip"
    assert page.locator("#skip").bounding_box()["y"] >= 0
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "tab-chat"
    for expected in ("tab-complete", "tab-infill", "tab-compare", "tab-chat", "tab-complete"):
        page.keyboard.press("ArrowRight")
        assert page.evaluate(focused) == expected
    assert page.get_attribute("#tab-complete", "aria-selected") == "true"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.evaluate(focused) == "complete-text"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.type("By hand")
    script.gate.clear()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".run")
    assert page.evaluate(focused) == "stop"
    script.gate.set()
    finished(page)
    assert page.evaluate(focused) == "complete-text"
    names = []
    for _ in range(6):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.tagName.toLowerCase()"))
    assert names[1:5] == ["summary", "div", "button", "input"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowLeft")
    assert "state" in page.locator(".timeline input").get_attribute("aria-valuetext")


def test_the_end_of_a_run_is_announced_politely(visit):
    page = visit()
    say(page, "Hello")
    finished(page)
    assert page.get_attribute("#announcer", "aria-live") == "polite"
    assert re.fullmatch(
        r"done: \d+ tokens in \d+ forwards, \d\.\d a forward", page.text_content("#announcer")
    )


def test_every_field_has_a_name(visit):
    page = visit()
    nameless = page.eval_on_selector_all(
        "input, select, textarea",
        "all => all.filter(e => !e.labels.length && !e.ariaLabel).map(e => e.outerHTML)",
    )
    assert not nameless


@pytest.mark.parametrize(("motion", "moves"), [("reduce", False), ("no-preference", True)])
def test_nothing_moves_where_motion_is_not_wanted(visit, motion, moves):
    page = visit(reduced_motion=motion)
    moving = page.evaluate(
        """() => [...document.querySelectorAll('*')].filter(e =>
            parseFloat(getComputedStyle(e).transitionDuration) > 0).length"""
    )
    assert (moving > 0) == moves


# The page and the server that carries it


@pytest.fixture
def real(letters):
    """A server whose model writes the alphabet, and which asks for a key: its address, its gate."""
    generator = letters("full")
    catalog = Catalog([Served("letters", generator, Scheduler(generator))])
    with serving(server.create_app(catalog, Settings(api_keys=("a-secret-key",)))) as address:
        yield address, generator.engine


def test_the_page_understands_the_server(contexts, real):
    page = contexts().new_page()
    address, engine = real
    page.goto(f"{address}/#compare")
    wait(page, "#model-trouble", to_contain_text="API key")
    page.fill("[name=key]", "a-secret-key")
    page.press("[name=key]", "Tab")
    wait(page, "[name=model] option", to_have_text="letters")
    page.fill("[name=max_tokens]", "12")
    page.uncheck("[name=chat]")
    page.select_option("[name=samplerA]", "low_confidence")
    page.select_option("[name=samplerB]", "random")
    # The server merges canvases that come faster than they are sent: one has to be seen early.
    engine.close_gate()
    say(page, "abc", "compare")
    engine.let()
    page.wait_for_selector(".canvas [data-state=masked]")
    engine.open_gate()
    finished(page, 2)
    assert page.locator(".run .trouble").all_text_contents() == ["", ""]
    assert page.locator(".answer").all_text_contents() == ["defghijklmno", "defghijklmno"]
    assert page.text_content("#compare-verdict").endswith("The texts are the same.")
    assert states(page)["masked"] == 0
    for slider in page.locator(".timeline input").all():
        slider.focus()
        page.keyboard.press("Home")
    assert states(page)["masked"] > 0
    page.close()
