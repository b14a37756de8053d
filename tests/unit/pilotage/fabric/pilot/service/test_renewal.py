"""When the pilot's token is renewed."""

from pilotage.fabric.pilot.service import credentials
from pilotage.fabric.pilot.service.credentials import TokenRenewal
from pilotage.fabric.pilot.service.service_client import Service, Token
from pilotage.fabric.pilot.service.transport import Away, Refused, Transport
from tests.support.clocks import ManualClock


class Renewing(Service):
    """Answers as told."""

    def __init__(self, *answers: Token | Exception) -> None:
        super().__init__(Transport("http://nowhere", ""))
        self.answers = list(answers)

    def renew_token(self) -> Token:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_token_is_renewed_when_half_of_its_life_is_over() -> None:
    clock, service = ManualClock(), Renewing(Token("t2", life=100), Token("t3", life=100))
    renewing = TokenRenewal(service, life=1000, clock=clock)
    assert renewing.renew_if_due() == 300  # looked at again, since the host may sleep
    clock.now = 499
    assert renewing.renew_if_due() == 1
    assert len(service.answers) == 2
    clock.now = 500
    assert renewing.renew_if_due() == 50
    clock.now = 550
    renewing.renew_if_due()
    assert not service.answers
    assert not renewing.refusal()


def test_while_the_service_is_away_it_is_tried_again() -> None:
    clock, service = ManualClock(), Renewing(Away("gone"), Token("t2", life=1000))
    renewing = TokenRenewal(service, life=100, clock=clock)
    clock.now = 50
    assert renewing.renew_if_due() == 30
    clock.now = 80
    assert renewing.renew_if_due() == 300
    assert not renewing.refusal()


def test_a_pilot_that_was_not_heard_tries_again_since_its_next_heartbeat_is_heard() -> None:
    clock = ManualClock()
    service = Renewing(Refused(403, "not_heard", "not heard for 1800 s"), Token("t2", life=1000))
    renewing = TokenRenewal(service, life=100, clock=clock)
    clock.now = 50
    assert renewing.renew_if_due() == 30
    assert not renewing.refusal()
    clock.now = 80
    assert renewing.renew_if_due() == 300
    assert not service.answers


def test_after_a_refusal_it_is_not_tried_again() -> None:
    clock, service = ManualClock(), Renewing(Refused(403, "not_allowed", "the pilot is Deleted"))
    renewing = TokenRenewal(service, life=100, clock=clock)
    clock.now = 50
    renewing.renew_if_due()
    assert renewing.renew_if_due() is None
    assert "the pilot is Deleted" in renewing.refusal()


def test_what_cannot_be_renewed_is_left() -> None:
    assert TokenRenewal(Renewing(), life=None).renew_if_due() is None
    assert credentials.life_left({"role": "operator", "exp": 100}, now=40) is None
    assert credentials.life_left({}, now=40) is None
    assert credentials.life_left({"role": "pilot", "exp": 100}, now=40) == 60
