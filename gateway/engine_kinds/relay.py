"""The kind `relay`: a server of any make that speaks OpenAI's API, whose requests and answers pass unchanged."""

from gateway.backends.relay import RelayServer
from gateway.doctor import EngineReport, Fault, Finding, Means, Subject, make_account
from gateway.doctor.recognise import identify
from gateway.engine_kinds.kind import EngineKind
from gateway.engine_kinds.openai_server import OpenAIReader, examine_page, explain_silence
from gateway.evidence import Http, NoAnswer
from gateway.settings import RelaySettings


def _open_reader(settings: RelaySettings, http: Http) -> OpenAIReader:
    return OpenAIReader(http, settings.url, settings.metrics_url, key=settings.api_key)


async def look_at_relay(subject: Subject, settings: RelaySettings, reader: OpenAIReader, means: Means) -> EngineReport:
    """Checks that a server of any make is healthy, and has counts on its metrics page if that is configured."""
    where, url = subject.where, f"{settings.url}{settings.health_path}"
    try:
        answer = await means.http.get(url, settings.api_key)
    except NoAnswer as exc:
        return EngineReport(subject, (explain_silence(where, url, exc),))
    if answer.status != 200:
        return EngineReport(subject, (Finding(Fault.NOT_READY, where, f"{url} answers {answer.status}"),))
    page, faults = await examine_page(where, reader)
    account = make_account(reader.read_settings(page) if page else ())
    return EngineReport(subject, faults, account, await identify(reader, page))


RELAY = EngineKind(
    settings=RelaySettings,
    open_tokens=None,
    open_relay=RelayServer,
    open_reader=_open_reader,
    look=look_at_relay,
)
