"""The ClassAd language.

Lexer, parser, syntax tree, restrictions, evaluation by HTCondor's library, normal form.
"""
