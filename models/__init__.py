"""Tables, all SQL, and the rules that stand beside it: ids, IAM, projection, journal, secret stores."""
