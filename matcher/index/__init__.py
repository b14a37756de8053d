"""What waits and what may run where, in memory.

Bitmaps over requirement classes, samplers, the pools of places.
"""
