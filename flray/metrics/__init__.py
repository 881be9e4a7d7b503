"""What runs are judged by, as plain functions of counts and tables. Knows no engine, no algorithm and no Ray."""
