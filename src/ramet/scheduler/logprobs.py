"""From a step's logprob columns to the entries that a request asked for."""

from __future__ import annotations

from ramet.executor.base import StepOutput
from ramet.scheduler.state import Request
from ramet.types import TokenLogprob


def drawn_logprob(request: Request, output: StepOutput, index: int) -> TokenLogprob:
    """Of sampled entry `index`, whose token has been appended to `request.outputs`."""
    spec, top, chosen = request.spec, None, None
    if spec.top_logprobs_num > 0:
        ids = output.top_ids[index, : spec.top_logprobs_num].tolist()
        pairs = zip(ids, output.top_logprobs[index, : spec.top_logprobs_num].tolist(), strict=True)
        top = [(token, logprob) for token, logprob in pairs if token >= 0]
    column = output.id_logprobs[index] if spec.token_ids_logprob else None
    if column is not None:
        chosen = list(zip(spec.token_ids_logprob, column.tolist(), strict=True))
    return TokenLogprob(request.outputs[-1], float(output.logprobs[index]), top, chosen)


def add_scored(request: Request, output: StepOutput, first: int, positions: range) -> None:
    """Append the prompt logprobs of one chunk: scored tokens `first` ..., at `positions`, each about the next token."""
    spec, entries = request.spec, request.input_logprobs
    if request.score_from == 0 and spec.logprob_start_len == 0 and not entries:
        entries.append(TokenLogprob(spec.token_ids[0], None))
    for at, position in enumerate(positions, start=first):
        top = None
        if spec.top_logprobs_num > 0:
            ids = output.score_top_ids[at, : spec.top_logprobs_num].tolist()
            pairs = zip(ids, output.score_top_logprobs[at, : spec.top_logprobs_num].tolist(), strict=True)
            top = [(token, logprob) for token, logprob in pairs if token >= 0]
        column = output.score_id_logprobs[at] if spec.token_ids_logprob else None
        chosen = None if column is None else list(zip(spec.token_ids_logprob, column.tolist(), strict=True))
        entries.append(TokenLogprob(spec.token_ids[position + 1], float(output.score_logprobs[at]), top, chosen))
