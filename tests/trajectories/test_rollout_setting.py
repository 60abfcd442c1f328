"""What the questions of a data set are answered with."""

import pytest

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.core.errors import UnknownNameError
from deepsearch_rl.core.profile import Profile


def test_a_data_set_without_a_corpus_is_refused(smoke: Profile) -> None:
    with pytest.raises(UnknownNameError, match="unknown dataset 'multihop'"):
        RolloutSetting.of(smoke, "multihop")
