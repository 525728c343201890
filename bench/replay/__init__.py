"""Calls to a pool replayed over the operator as it is: its work list, passes, orders and watches, in virtual time."""
