"""Constrained generation: JSON Schema, regular expressions, EBNF and structural tags, as masks over the vocabulary.

`GrammarCompiler` turns a `GrammarSpec` into a `CompiledGrammar` off the step loop; each request follows one with a
`Matcher`. The automata are llguidance's; what it would pass over is refused here.
"""

from ramet.grammar.compiler import CompiledGrammar, GrammarCompiler
from ramet.grammar.matcher import Matcher
from ramet.grammar.spec import FLEXIBLE_WHITESPACE, GrammarSpec, grammar_of

__all__ = ["FLEXIBLE_WHITESPACE", "CompiledGrammar", "GrammarCompiler", "GrammarSpec", "Matcher", "grammar_of"]
